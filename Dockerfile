# The course in an image:  docker build -t course . && docker run --rm -p 8888:8888 course
# For a GPU, run it with --gpus all: the driver is the host's. The lesson `reproducible_runs` says what else an image leaves open.
# A tag moves. For the same image next year, replace it by the digest that `docker images --digests` shows.
# Tried so far: built and run, on a CPU, on a Debian 12 root with Python 3.11.7 and torch's CPU build in place of the
# base image (g++ was added to the built image by the same command); not yet on the base image itself, nor on a GPU.
FROM python:3.12-slim

# torch.compile needs a C++ compiler, which the slim image lacks.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends g++ \
    && rm -rf /var/lib/apt/lists/*

WORKDIR /course
# For another build of torch:  --build-arg TORCH_INDEX_URL=...
ARG TORCH_INDEX_URL=""
COPY requirements.txt constraints.txt ./
RUN if [ -n "$TORCH_INDEX_URL" ]; then \
        pip install --no-cache-dir --index-url "$TORCH_INDEX_URL" "$(grep '^torch==' requirements.txt)"; \
    fi \
    && pip install --no-cache-dir -r requirements.txt -c constraints.txt

RUN useradd --create-home --uid 1000 learner && chown learner /course
COPY --chown=learner . .
RUN pip install --no-cache-dir --no-deps --no-build-isolation -e .
USER 1000

EXPOSE 8888
CMD ["jupyter", "lab", "--ip=0.0.0.0", "--no-browser", \
     "--ContentsManager.pre_save_hook=course_utils.show.saving.without_widgets", "notebooks"]
