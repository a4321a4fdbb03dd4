FROM python:3.11-slim-bookworm AS build
WORKDIR /source
COPY pyproject.toml README.md LICENSE ./
COPY kafscale kafscale
RUN python3 -m venv /opt/kafscale && /opt/kafscale/bin/pip install --no-cache-dir --disable-pip-version-check .

FROM python:3.11-slim-bookworm
COPY --from=build /opt/kafscale /opt/kafscale
# A directory made here, and owned by the user, gives its owner to a new volume that is mounted on it.
RUN groupadd --gid 1000 kafscale \
    && useradd --uid 1000 --gid kafscale --no-create-home --shell /usr/sbin/nologin kafscale \
    && install -d -o kafscale -g kafscale /data
USER kafscale
WORKDIR /data
VOLUME /data
ENV PATH=/opt/kafscale/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    KAFSCALE_DATA_DIR=/data \
    KAFSCALE_LISTEN=0.0.0.0:9092 \
    KAFSCALE_ADMIN_LISTEN=0.0.0.0:9644
EXPOSE 9092 9644
HEALTHCHECK --interval=5s --timeout=3s --start-period=60s --retries=3 \
    CMD ["python3", "-c", "import os, urllib.request as r; r.urlopen('http://127.0.0.1:' + os.environ['KAFSCALE_ADMIN_LISTEN'].rpartition(':')[2] + '/readyz', timeout=2)"]
# The broker drains on SIGTERM, within --shutdown-timeout (8s, below the 10 s after which Docker kills).
ENTRYPOINT ["kafscale", "serve"]
