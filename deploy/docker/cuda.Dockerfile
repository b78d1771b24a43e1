# An image that serves models on NVIDIA GPUs, by MLX's CUDA build. The host needs NVIDIA's driver for CUDA 13 and its container toolkit.
#   docker build --file deploy/docker/cuda.Dockerfile --tag flambeau:0.1.0-cuda .
#   docker run --gpus 1 --read-only --tmpfs /tmp:exec --volume flambeau-cache:/cache --publish 127.0.0.1:8080:8080 flambeau:0.1.0-cuda \
#     serve Qwen/Qwen3-8B --engine mlx --device gpu --host 0.0.0.0 --insecure
FROM rust:1.95-slim-bookworm AS build
WORKDIR /source
COPY . .
RUN cargo build --release --locked --package flambeau-cli && install -D target/release/flambeau /out/flambeau

FROM debian:bookworm-slim
# MLX comes with CUDA's libraries. The compiler builds flambeau's interface to MLX at the first start, into /cache.
ARG MLX="mlx[cuda13]>=0.32.4,<0.33"
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends g++ python3 python3-venv \
    && rm -rf /var/lib/apt/lists/* \
    && python3 -m venv /opt/mlx \
    && /opt/mlx/bin/pip install --no-cache-dir "$MLX"
COPY --from=build /out/flambeau /usr/local/bin/flambeau
COPY deploy/docker/healthy /usr/local/bin/healthy
RUN useradd --uid 65532 --no-create-home --home-dir /cache --shell /usr/sbin/nologin flambeau \
    && install --directory --owner 65532 --group 65532 /cache /models
ENV HOME=/cache XDG_CACHE_HOME=/cache HF_HOME=/cache/huggingface VIRTUAL_ENV=/opt/mlx \
    NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
USER 65532:65532
VOLUME /cache
EXPOSE 8080
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=30m --retries=3 CMD ["healthy"]
ENTRYPOINT ["flambeau"]
CMD ["serve", "--help"]
