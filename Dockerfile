# The base images are named by digest too, so that a build next year is of the same: python:3.11.16 on Debian 12.
ARG PYTHON_IMAGE=python:3.11-slim-bookworm@sha256:a36c24f9cbdf4fd0f52d67f0823eeac19c2028c637cecc392d97f980d4fec56b

FROM ${PYTHON_IMAGE} AS build
WORKDIR /source
# What is installed has the versions and the hashes of these files, which `make lock` writes.
COPY requirements requirements
RUN python3 -m venv /opt/build && python3 -m venv /opt/kafscale \
    && /opt/build/bin/pip install --no-cache-dir --disable-pip-version-check --require-hashes -r requirements/build.txt \
    && /opt/kafscale/bin/pip install --no-cache-dir --disable-pip-version-check --require-hashes -r requirements/image.txt
COPY pyproject.toml README.md LICENSE ./
COPY kafscale kafscale
RUN /opt/build/bin/pip wheel --no-cache-dir --disable-pip-version-check --no-deps --no-build-isolation --wheel-dir dist . \
    && /opt/kafscale/bin/pip install --no-cache-dir --disable-pip-version-check --no-index --no-deps dist/*.whl \
    && /opt/kafscale/bin/pip check --disable-pip-version-check \
    && /opt/kafscale/bin/pip uninstall --yes pip setuptools

FROM ${PYTHON_IMAGE} AS broker
COPY --from=build /opt/kafscale /opt/kafscale
# A directory made here, and owned by the user, gives its owner to a new volume that is mounted on it.
RUN groupadd --gid 1000 kafscale \
    && useradd --uid 1000 --gid kafscale --no-create-home --shell /usr/sbin/nologin kafscale \
    && install -d -o kafscale -g kafscale -m 700 /data
# By number, so that Kubernetes' runAsNonRoot can tell.
USER 1000:1000
WORKDIR /data
VOLUME /data
# It writes to /data alone, so that the root file system may be read-only. With `docker run -p 9092:9092`, clients of the host are
# told 127.0.0.1:9092; set KAFSCALE_ADVERTISED_LISTENER for others, and KAFSCALE_CONSOLE=0.0.0.0:8080 for the console.
ENV PATH=/opt/kafscale/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    KAFSCALE_DATA_DIR=/data \
    KAFSCALE_LISTEN=0.0.0.0:9092 \
    KAFSCALE_ADVERTISED_LISTENER=PLAINTEXT=127.0.0.1:9092 \
    KAFSCALE_ADMIN_LISTEN=0.0.0.0:9644
EXPOSE 9092 9644
HEALTHCHECK --interval=5s --timeout=3s --start-period=60s --retries=3 \
    CMD ["python3", "-c", "import os, urllib.request as r; r.urlopen('http://127.0.0.1:' + os.environ['KAFSCALE_ADMIN_LISTEN'].rpartition(':')[2] + '/readyz', timeout=2)"]
# The broker drains on SIGTERM, within --shutdown-timeout (8s, below the 10 s after which Docker kills).
ENTRYPOINT ["kafscale", "serve"]

# For the profile `spark` of compose.yaml: `kafscale pipeline` and `kafscale sql` with Spark from PyPI, and its Java.
FROM build AS build-spark
RUN python3 -m venv /opt/spark \
    && /opt/spark/bin/pip install --no-cache-dir --disable-pip-version-check --require-hashes -r requirements/build.txt \
    && /opt/spark/bin/pip install --no-cache-dir --disable-pip-version-check --require-hashes --no-build-isolation -r requirements/spark.txt \
    && /opt/spark/bin/pip install --no-cache-dir --disable-pip-version-check --no-index --no-deps dist/*.whl \
    && /opt/spark/bin/pip check --disable-pip-version-check \
    && /opt/spark/bin/pip uninstall --yes pip

FROM ${PYTHON_IMAGE} AS spark
# Java comes from Debian, with the security fixes of the day of the build.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends openjdk-17-jre-headless procps \
    && rm -rf /var/lib/apt/lists/*
COPY --from=build-spark /opt/spark /opt/spark
COPY deploy/compose/pipeline.yaml /etc/kafscale/pipeline.yaml
RUN groupadd --gid 1000 kafscale \
    && useradd --uid 1000 --gid kafscale --no-create-home --home-dir /data --shell /usr/sbin/nologin kafscale \
    && install -d -o kafscale -g kafscale -m 700 /data
USER 1000:1000
WORKDIR /data
VOLUME /data
# Jars that Spark fetches are kept in the home directory; /tmp must be writable, and programs in it run.
ENV PATH=/opt/spark/bin:$PATH \
    HOME=/data \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1
EXPOSE 9401
ENTRYPOINT ["kafscale"]
CMD ["pipeline", "run", "/etc/kafscale/pipeline.yaml"]

# What is built without a target.
FROM broker
