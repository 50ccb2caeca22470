// Compiles the Python in an archive for the Python of Pyodide, by that Python itself:
//   node compile_python.mjs FOLDER_OF_PYODIDE ARCHIVE NEW_ARCHIVE
// A page that starts it would otherwise compile its standard library each time, which takes longer than all the rest.
import fs from "node:fs";
import path from "node:path";
import { pathToFileURL } from "node:url";

const [folder, archive, compiled] = process.argv.slice(2);
const { loadPyodide } = await import(pathToFileURL(path.resolve(folder, "pyodide.mjs")));
const python = await loadPyodide();
python.FS.writeFile("/archive.zip", fs.readFileSync(archive));
python.runPython(`
import importlib.util
import zipfile
from importlib._bootstrap_external import _code_to_hash_pyc

with zipfile.ZipFile("/archive.zip") as given, zipfile.ZipFile("/compiled.zip", "w") as compiled:
    for entry in given.infolist():
        name, data = entry.filename, given.read(entry)
        if name.endswith(".py"):
            code = compile(data, name, "exec", dont_inherit=True)
            # Not checked against its source, which does not come along.
            data = bytes(_code_to_hash_pyc(code, importlib.util.source_hash(data), False))
            name += "c"
        compiled.writestr(zipfile.ZipInfo(name, entry.date_time), data, zipfile.ZIP_DEFLATED, 9)
`);
fs.writeFileSync(compiled, python.FS.readFile("/compiled.zip"));
