// The page "Your own program": a file that is dropped here is read by the course's own Python, in a worker of this page.
// It works from file://, where nothing can be fetched: Python comes in a script (data-python), as text.
"use strict";

// Runs in the worker: it is turned into text, and so may use nothing from outside of itself.
function ownProgramWorker() {
  const HOME = "https://python.invalid/"; // where Pyodide believes its files to be; no such host can exist
  const TYPES = { wasm: "application/wasm", mjs: "text/javascript" };
  const fetchData = self.fetch.bind(self);
  let packed, starting;

  async function unpack(name) {
    const data = await fetchData(`data:application/octet-stream;base64,${packed[name]}`);
    const headers = { "Content-Type": TYPES[name.split(".").pop()] || "application/octet-stream" };
    return new Response(data.body.pipeThrough(new DecompressionStream("gzip")), { headers });
  }

  self.fetch = async request => {
    const name = String(request.url || request).replace(HOME, "");
    if (!Object.hasOwn(packed, name)) throw new TypeError(`${name} is not part of this page`);
    return unpack(name);
  };

  const address = async name => URL.createObjectURL(await (await unpack(name)).blob());

  async function start() {
    const { loadPyodide } = await import(await address("pyodide.mjs"));
    const { default: createPyodideModule } = await import(await address("pyodide.asm.mjs"));
    const python = await loadPyodide({ createPyodideModule, indexURL: HOME });
    python.unpackArchive(await (await unpack("course.zip")).arrayBuffer(), "zip", { extractDir: "/course" });
    python.runPython("import sys; sys.path.insert(0, '/course')");
    return { python, reader: python.pyimport("own_program.file_reader") };
  }

  async function answer(files, lessons) {
    const { python, reader } = await starting;
    postMessage({ state: "reading" });
    const { FS } = python;
    const folders = files.map((_, number) => `/brought/${number}`);
    try {
      files.forEach((file, number) => {
        FS.mkdirTree(folders[number]);
        FS.mount(FS.filesystems.WORKERFS, { files: [file] }, folders[number]);
      });
      return JSON.parse(reader.answer(lessons, ...files.map((file, number) => `${folders[number]}/${file.name}`)));
    } finally {
      for (const folder of folders) FS.unmount(folder);
    }
  }

  self.onmessage = async ({ data }) => {
    try {
      if (data.packed) {
        packed = data.packed;
        starting = start();
        await starting;
      } else {
        postMessage({ answer: await answer(data.files, data.lessons) });
      }
    } catch (error) {
      postMessage({ failed: String(error.message || error).trim().split("\n").pop() });
    }
  };
}

document.addEventListener("DOMContentLoaded", () => {
  const place = document.querySelector(".own-program");
  if (!place) return;

  // The browser itself refuses whatever this page would send or fetch.
  const policy = document.createElement("meta");
  policy.httpEquiv = "Content-Security-Policy";
  policy.content = "connect-src data: blob:; form-action 'self' file:";
  document.head.append(policy);

  const LESSONS = "../notebooks/{}.html";
  const MOST_BYTES = 500e6;
  const COMMANDS = "make trace ARGS=FILE, or make snapshot ARGS=FILE";
  place.innerHTML = `
    <div class="own-drop">
      <p class="own-call">Drop a trace or a snapshot here</p>
      <p><button type="button" class="own-choose">Choose a file</button>
        <input type="file" multiple hidden accept=".json,.gz,.pickle,.pkl,.pt"></p>
      <p class="own-small">Nothing leaves this machine. Two of a kind are compared.</p>
    </div>
    <div class="own-progress" hidden>
      <p><span role="status"></span> <span class="own-seconds" aria-hidden="true"></span></p>
      <progress aria-label="Reading"></progress>
      <button type="button" class="own-cancel">Cancel</button>
    </div>
    <div class="own-answers" role="log" aria-label="Answers"></div>`;
  const [drop, input, choose] = [".own-drop", "input", ".own-choose"].map(one => place.querySelector(one));
  const [progress, status, seconds] = [".own-progress", "[role=status]", ".own-seconds"].map(one => place.querySelector(one));
  const [cancel, answers] = [".own-cancel", ".own-answers"].map(one => place.querySelector(one));
  const example = document.getElementById("an-example");

  let loading, running, stop;
  let turn = Promise.resolve();

  function loadPython() {
    loading ||= new Promise((done, failed) => {
      const script = document.createElement("script");
      script.src = place.dataset.python;
      script.onload = () => done(window.coursePython);
      script.onerror = () => failed(new Error("Python is missing beside this page"));
      document.head.append(script);
    });
    return loading;
  }

  async function newWorker() {
    const packed = await loadPython();
    // Pyodide wants a module, and a page from the disk can load one from data: alone, not from a blob.
    const code = encodeURIComponent(`(${ownProgramWorker})()`);
    const started = new Worker(`data:text/javascript,${code}`, { type: "module" });
    started.postMessage({ packed });
    return started;
  }

  // As soon as somebody looks for a file: Python starts while they choose it.
  function startWorker() {
    running ||= newWorker();
    running.catch(() => { running = loading = undefined; });
    return running;
  }

  function endWorker() {
    running?.then(worker => worker.terminate(), () => {});
    running = undefined;
  }

  const size = bytes => (bytes < 1e6 ? `${Math.ceil(bytes / 1e3)} kB` : `${(bytes / 1e6).toFixed(1)} MB`);
  const sentence = words => ({ sentence: words });

  // One file or two: an answer always comes, be it a sentence.
  async function read(files) {
    if (files.length > 2) return sentence("Bring one file, or two of a kind to compare.");
    if (files.some(file => file.size > MOST_BYTES)) {
      return sentence(`This file is too large for a page. On the command line: ${COMMANDS}.`);
    }
    const names = files.map(file => `${file.name} (${size(file.size)})`).join(" and ");
    const began = Date.now();
    const tick = () => { seconds.textContent = `${Math.round((Date.now() - began) / 1000)} s`; };
    const clock = setInterval(tick, 1000);
    tick();
    status.textContent = "Starting Python in this page";
    progress.hidden = false;
    try {
      return await new Promise((done, failed) => {
        stop = () => { endWorker(); done(undefined); };
        startWorker().then(worker => {
          worker.onerror = event => failed(new Error(event.message || "Python has stopped"));
          worker.onmessage = ({ data }) => {
            if (data.state) status.textContent = `Reading ${names}`;
            else if (data.failed) failed(new Error(data.failed));
            else done(data.answer);
          };
          worker.postMessage({ files, lessons: LESSONS });
        }).catch(failed);
      });
    } catch (error) {
      endWorker(); // what has failed once is not asked again
      return sentence(`This page could not read ${names}: ${error.message}. On the command line: ${COMMANDS}.`);
    } finally {
      clearInterval(clock);
      progress.hidden = true;
    }
  }

  function show(files, answer) {
    const part = document.createElement("section");
    const head = document.createElement("p");
    head.className = "own-files";
    head.textContent = files.map(file => file.name).join(" → ");
    part.append(head);
    part.setAttribute("aria-label", head.textContent);
    if (answer.html) {
      const card = document.createElement("div");
      card.innerHTML = answer.html; // the card's template escapes all that comes from a file
      part.append(card);
      const copy = document.createElement("button");
      copy.type = "button";
      copy.textContent = "Copy as text";
      copy.addEventListener("click", async () => {
        await navigator.clipboard.writeText(answer.text);
        copy.textContent = "Copied";
      });
      head.append(" ", copy);
      if (files.length === 2) {
        const swap = document.createElement("button");
        swap.type = "button";
        swap.textContent = "The other way round";
        swap.addEventListener("click", () => bring([...files].reverse()));
        head.append(" ", swap);
      }
    } else {
      const words = document.createElement("p");
      words.className = "own-sentence";
      words.textContent = answer.sentence;
      part.append(words);
    }
    if (example) example.hidden = true;
    answers.prepend(part);
  }

  // In turn: who brings another file meanwhile gets both answers.
  function bring(files) {
    turn = turn.then(async () => {
      const answer = await read(files);
      if (answer) show(files, answer);
    });
  }

  // Of two, the one that was written first is what the other is held against.
  const given = list => [...list].sort((one, other) => one.lastModified - other.lastModified);

  choose.addEventListener("click", () => { startWorker(); input.click(); });
  input.addEventListener("change", () => {
    if (input.files.length) bring(given(input.files));
    input.value = ""; // so that the same file can be chosen again
  });
  cancel.addEventListener("click", () => { stop?.(); choose.focus(); });

  // Anywhere on the page: a browser would leave it for a file that misses the field.
  let inside = 0;
  const mark = () => drop.classList.toggle("own-over", inside > 0);
  window.addEventListener("dragenter", () => { startWorker(); inside += 1; mark(); });
  window.addEventListener("dragleave", () => { inside -= 1; mark(); });
  window.addEventListener("dragover", event => event.preventDefault());
  window.addEventListener("drop", event => {
    event.preventDefault();
    inside = 0;
    mark();
    if (event.dataTransfer.files.length) bring(given(event.dataTransfer.files));
  });
});
