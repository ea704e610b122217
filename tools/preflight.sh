#!/bin/sh
# Checks that Python and Java are new enough for Evertide. An error is one sentence: what is missing, and the remedy.
#
#   preflight.sh python    prints the Python to use: $PYTHON if set, else the first one that is new enough
#   preflight.sh java      prints nothing if Spark will find a Java that is new enough
#
# POSIX sh. It runs no programs except the Python and the Java that it checks.
set -u

fail() {
    echo "evertide: $1" >&2
    exit 1
}

# A version manager's stub may be on PATH and not run, so each candidate is run.
python_version() {
    "$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null
}

new_enough() {
    case $1 in
        3.1[1-9] | 3.[2-9][0-9]) return 0 ;;
        *) return 1 ;;
    esac
}

find_python() {
    if [ -n "${PYTHON:-}" ]; then
        found=$(python_version "$PYTHON") || fail "PYTHON=$PYTHON does not run; name a Python 3.11 or newer with 'make setup PYTHON=...'."
        new_enough "$found" || fail "PYTHON=$PYTHON is Python $found, but 3.11 or newer is needed; name another with 'make setup PYTHON=...'."
        return
    fi
    seen=none
    for PYTHON in python3.13 python3.12 python3.11 python3; do
        found=$(python_version "$PYTHON") || continue
        if new_enough "$found"; then return; fi
        seen=$found
    done
    fail "Python 3.11 or newer is needed and was not found (newest seen: $seen); install one, or name it with 'make setup PYTHON=...'."
}

check_venv() {
    "$PYTHON" -c 'import ensurepip, venv' 2>/dev/null ||
        fail "$PYTHON (Python $found) cannot create virtual environments, as its venv or ensurepip module is missing; install them (Debian, Ubuntu: 'apt install python$found-venv'), or name another Python with 'make setup PYTHON=...'."
}

# Chooses the same Java as Spark's own scripts.
check_java() {
    if [ -n "${JAVA_HOME:-}" ]; then
        java=$JAVA_HOME/bin/java
        remedy="point JAVA_HOME to a Java 17 or newer, or unset it to use the one on PATH"
    else
        java=java
        remedy="install one (Debian, Ubuntu: 'apt install openjdk-17-jre-headless'; macOS: 'brew install openjdk@17'), or set JAVA_HOME"
    fi
    # On macOS without Java, 'java' is a stub that fails.
    said=$("$java" -version 2>&1) || fail "Spark needs Java 17 or newer, and '$java' does not run; $remedy."
    version=${said#*version \"}
    version=${version%%\"*}
    major=${version%%[!0-9]*}
    if [ "$major" = 1 ]; then # 1.8 was the spelling until Java 9
        major=${version#1.}
        major=${major%%[!0-9]*}
    fi
    [ -n "$major" ] || fail "Spark needs Java 17 or newer, and '$java -version' does not print its version; $remedy."
    [ "$major" -ge 17 ] || fail "Spark needs Java 17 or newer, and '$java' is Java $major; $remedy."
}

case ${1:-} in
    python)
        find_python
        check_venv
        echo "$PYTHON"
        ;;
    java) check_java ;;
    *) fail "usage: preflight.sh python | java" ;;
esac
