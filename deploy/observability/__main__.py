"""Write the files of deploy/grafana and deploy/prometheus. `--docs URL` is where runbooks are, by default docs/."""

import argparse

from deploy.observability.rendering import DOCS_URL, files

if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m deploy.observability", description=__doc__)
    parser.add_argument("--docs", metavar="URL", default=DOCS_URL, help="address of the documentation")
    for path, text in files(parser.parse_args().docs).items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
