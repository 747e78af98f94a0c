#!/usr/bin/env python3
"""deploy/kubernetes.yaml against the schemas of Kubernetes' own API, as `kubernetes-validate` from PyPI brings them.

  deploy_schema.py --deploy FOLDER --venv FOLDER
"""

import argparse
import copy
import pathlib
import sys

from client_support import inside_venv


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--deploy", required=True, type=pathlib.Path)
    parser.add_argument("--venv", required=True)
    options = parser.parse_args()
    inside_venv(options.venv, ["kubernetes-validate", "pyyaml"], "kubernetes_validate, yaml")
    import kubernetes_validate
    import yaml

    version = kubernetes_validate.latest_version()
    kinds = []
    for document in yaml.safe_load_all((options.deploy / "kubernetes.yaml").read_text(encoding="utf-8")):
        kubernetes_validate.validate(document, version, strict=True)
        kinds.append(document["kind"])
        # The validator sees what is wrong.
        wrong = copy.deepcopy(document)
        wrong["metadata"]["labls"] = {}
        try:
            kubernetes_validate.validate(wrong, version, strict=True)
        except kubernetes_validate.ValidationError:
            continue
        sys.exit(f"{document['kind']}: a misspelt field was let through")
    print(f"{', '.join(kinds)}: valid for Kubernetes {version}")


if __name__ == "__main__":
    main()
