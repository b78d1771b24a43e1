# An image that serves models on CPUs. From the root of the repository:
#   docker build --file deploy/docker/cpu.Dockerfile --tag flambeau:0.1.0 .
#   docker run --read-only --tmpfs /tmp --volume flambeau-cache:/cache --publish 127.0.0.1:8080:8080 flambeau:0.1.0 \
#     serve HuggingFaceTB/SmolLM2-135M-Instruct --host 0.0.0.0 --insecure
FROM rust:1.95-slim-bookworm AS build
WORKDIR /source
COPY . .
RUN cargo build --release --locked --package flambeau-cli && install -D target/release/flambeau /out/flambeau

FROM debian:bookworm-slim
COPY --from=build /out/flambeau /usr/local/bin/flambeau
COPY deploy/docker/healthy /usr/local/bin/healthy
# /cache holds pulled models and exported checkpoints; nothing else of the image is written to.
RUN useradd --uid 65532 --no-create-home --home-dir /cache --shell /usr/sbin/nologin flambeau \
    && install --directory --owner 65532 --group 65532 /cache /models
ENV HOME=/cache XDG_CACHE_HOME=/cache HF_HOME=/cache/huggingface
USER 65532:65532
VOLUME /cache
EXPOSE 8080
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=30m --retries=3 CMD ["healthy"]
ENTRYPOINT ["flambeau"]
CMD ["serve", "--help"]
