# Sourced by the other tools: makes .venv in the repository root and keeps it up to date.
#
#   ensure_environment requirements.txt    # then run "$venv/bin/python"

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
venv="$root/.venv"

say() { printf '%s\n' "$*" >&2; }

stop() {
  say "$*"
  exit 1
}

# Succeeds if $1 runs and is a Python that the pinned requirements support.
is_supported_python() {
  "$1" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))' >/dev/null 2>&1
}

# Prints the first supported Python on PATH that can make virtual environments.
find_python() {
  local candidate without_venv=""
  for candidate in python3.13 python3.12 python3.11 python3; do
    is_supported_python "$candidate" || continue
    if "$candidate" -c 'import ensurepip, venv' >/dev/null 2>&1; then
      command -v "$candidate"
      return
    fi
    without_venv="${without_venv:-$candidate}"
  done
  if [ -n "$without_venv" ]; then
    stop "$without_venv cannot make virtual environments: its venv module is missing." \
      "On Debian or Ubuntu: apt-get install $without_venv-venv"
  fi
  stop "Python 3.11, 3.12 or 3.13 is needed, and none of python3.13, python3.12, python3.11, python3" \
    "on PATH is one. Install one of them, or put it on PATH."
}

make_venv() {
  local python
  if [ -x "$venv/bin/python" ] && "$venv/bin/python" -c '' 2>/dev/null; then
    is_supported_python "$venv/bin/python" ||
      stop "$venv holds a Python outside 3.11 to 3.13. Remove that folder and run this again."
    "$venv/bin/python" -m pip --version >/dev/null 2>&1 && return
  fi
  python="$(find_python)" || exit 1
  "$python" -m venv --clear "$venv" || stop "$python could not make $venv; its message stands above."
}

pins() { cat "$root"/requirements*.txt; }

# Succeeds if the stamp of requirements file $1 says that it was installed from the files as they are now.
is_installed() {
  [ -x "$venv/bin/python" ] && [ -f "$venv/installed-$1" ] && [ "$(pins)" = "$(cat "$venv/installed-$1")" ]
}

install() {
  local log="$venv/install.log" start=$SECONDS
  make_venv
  printf 'Installing %s into .venv (log: %s) ... ' "$1" "$log" >&2
  if ! "$venv/bin/python" -m pip install --disable-pip-version-check --progress-bar off \
    -r "$root/$1" >"$log" 2>&1; then
    say "failed"
    tail -n 15 "$log" >&2
    stop "The installation of $1 failed; the whole log is $log. Run the same command again to retry."
  fi
  # Written last, so that an interrupted installation is done again.
  pins >"$venv/installed-$1"
  say "done in $((SECONDS - start)) s"
}

# Makes .venv hold requirements file $1 (the test requirements contain those of training).
ensure_environment() {
  if is_installed "$1" || is_installed requirements-test.txt; then return; fi
  (
    # One installation at a time; systems without flock rely on their user.
    if command -v flock >/dev/null; then flock 9; fi
    is_installed "$1" || install "$1"
  ) 9<"$root" || exit 1
}
