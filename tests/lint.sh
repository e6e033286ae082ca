#!/usr/bin/env bash
# The linters, with the tools of the tests' environment, which test.sh makes:
#   bash tests/lint.sh              all of them
#   bash tests/lint.sh ruff mypy    only these
# test.sh and the hooks of .pre-commit-config.yaml call it.
set -euo pipefail
unset CDPATH
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."

place=${KILN_TEST_VENV:-$PWD/.venv}
bin=$place/venv/bin
if [[ ! -x $bin/ruff ]]; then
    echo "the linters are not installed in $place; run bash test.sh once, or name its folder in KILN_TEST_VENV" >&2
    exit 1
fi
export PYTHONPATH=$PWD/v3python PYTHONPYCACHEPREFIX=$place/pycache PYTHONNOUSERSITE=1

(($#)) || set -- ruff format mypy imports clang-format shellcheck
for linter; do
    case $linter in
        ruff) "$bin/ruff" check --no-cache . ;;
        format) "$bin/ruff" format --no-cache --check . ;;
        mypy) "$bin/mypy" --cache-dir "$place/mypy" ;;
        imports)
            PYTHONPATH=$PYTHONPATH:$PWD/bindings/python "$bin/lint-imports" --no-cache >"$place/imports.log" ||
                { cat "$place/imports.log" && exit 1; }
            ;;
        clang-format)
            find csrc bindings tests examples -regextype egrep -regex '.*\.(c|cc|cu|h|hpp)' -print0 |
                xargs -r -0 "$bin/clang-format" --dry-run -Werror
            ;;
        shellcheck)
            find . -name '*.sh' -not -path './.*' -not -path './input/cache/*' -print0 |
                xargs -0 "$bin/shellcheck" -x .ci/run kiln
            ;;
        *) echo "'$linter' is not a linter; expected ruff, format, mypy, imports, clang-format or shellcheck" >&2 && exit 2 ;;
    esac
done
