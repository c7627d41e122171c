# Sourced by quickstart.sh and tests/run.sh: a virtual environment with the pinned dependencies.
#
#   make_venv FOLDER EXTRAS     e.g. make_venv .venv test,colab
#
# Needs Python 3.11 or newer with the venv module. Installs again only when setup.py or constraints.txt changed.

find_python() {
  local candidate
  for candidate in "${PYTHON:-}" python3.11 python3.12 python3.13 python3; do
    if [ -n "$candidate" ] && "$candidate" -c 'import sys, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
      echo "$candidate"
      return
    fi
  done
  echo "Python 3.11 or newer with venv is needed: install it or set PYTHON=/path/to/python" >&2
  return 1
}

make_venv() {
  local folder=$1 extras=$2 python stamp
  stamp="$(cat setup.py constraints.txt | cksum) $extras"
  if [ "$(cat "$folder/.stamp" 2>/dev/null)" != "$stamp" ]; then
    python=$(find_python)
    echo "Installing into $folder ..."
    [ -x "$folder/bin/python" ] || "$python" -m venv "$folder"
    "$folder/bin/python" -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[$extras]"
    echo "$stamp" > "$folder/.stamp"
  fi
}
