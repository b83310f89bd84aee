#!/usr/bin/env bash
# Makes this checkout ready: .venv, and .env with the settings that can be found or are typed in.
#
#     ./init.sh            as often as you like: what is set already stays
#     source init.sh       the same, and then exports the settings (bash or zsh)
#
# It asks on a terminal only, never when CI is set. gcloud and az are given ten seconds for an
# answer: INIT_CLI_SECONDS=30 ./init.sh gives them longer.

if [ -z "${BASH_VERSION:-}${ZSH_VERSION:-}" ]; then
    echo "init.sh needs bash or zsh." >&2
    return 2
elif [ -n "${ZSH_VERSION:-}" ]; then
    case "${ZSH_EVAL_CONTEXT:-}" in
        *file*)
            # shellcheck disable=SC2296,SC1091  # zsh's way to name the file it reads
            command env BASH_ENV= bash -- "${(%):-%x}" &&
                . "$(command dirname -- "${(%):-%x}")/set_env.sh"
            return
            ;;
        *) exec bash -- "$0" "$@" ;;
    esac
elif (return 0 2>/dev/null); then
    # shellcheck disable=SC1091
    command env BASH_ENV= bash -- "${BASH_SOURCE[0]}" &&
        . "$(command dirname -- "${BASH_SOURCE[0]}")/set_env.sh"
    return
fi

# From here on this is a bash of its own.
set -u
umask 077 # .env may hold a token
unset CDPATH
cd -- "$(dirname -- "$0")" || exit 1
env_file=.env
problems=0
missing=''
silent_clis=' ' # those that did not answer in time are not asked again
helper=''
trap '[ -z "$helper" ] || kill -KILL -- "-$helper" 2>/dev/null' EXIT

problem() {
    problems=$((problems + 1))
    echo "init.sh: $*" >&2
}

# Prints the one line that a command says, if it looks as the pattern ($1) wants.
answer_of() {
    local pattern=$1 said status tries=$((${INIT_CLI_SECONDS:-10} * 10))
    shift
    [[ $silent_clis != *" $1 "* ]] && command -v "$1" >/dev/null || return 1
    said=$(mktemp) || return 1
    set -m # a process group of its own, so that its children end with it
    "$@" </dev/null >"$said" 2>/dev/null &
    helper=$!
    set +m
    while kill -0 "$helper" 2>/dev/null && [ "$tries" -gt 0 ]; do
        tries=$((tries - 1))
        sleep 0.1
    done
    if [ "$tries" -eq 0 ]; then
        silent_clis="$silent_clis$1 "
        echo "$1 did not answer within ${INIT_CLI_SECONDS:-10} s; going on without it." >&2
    fi
    { kill -KILL -- "-$helper"; wait "$helper"; } 2>/dev/null
    status=$?
    helper=''
    answer=$(head -c 300 "$said" | tr -d '\0\r')
    rm -f "$said"
    [ "$status" -eq 0 ] && [[ $answer =~ $pattern ]]
}

# Whether .env gives a setting ($1) a value.
is_kept() {
    grep -Eiqs "^[[:space:]]*(export[[:space:]]+)?$1[[:space:]]*=[[:space:]]*[^[:space:]]" "$env_file"
}

# Writes a setting ($1) to .env so that python-dotenv and shells read the same value ($2).
keep() {
    is_kept "$1" && return
    case $2 in
        *[\'\\]* | *"\${"* | *[[:cntrl:]]*)
            problem "$1 has characters that .env cannot hold; export it in your shell's profile."
            ;;
        *[!A-Za-z0-9_./:@%+,=-]*) printf "%s='%s'\n" "$1" "$2" >>"$env_file" ;;
        *) printf '%s=%s\n' "$1" "$2" >>"$env_file" ;;
    esac
}

can_ask() { [ -t 0 ] && [ -t 1 ] && [ -z "${CI:-}" ]; }

# Settles one setting: NAME 'what for' 'pattern' [command …, several apart by --].
settle() {
    local name=$1 what=$2 pattern=$3 answer='' from='your environment'
    local -a words=()
    shift 3
    if [ -n "${!name:-}" ]; then
        is_kept "$name" && from=.env
        answer=${!name}
    else
        for word in "$@" --; do
            if [ "$word" != -- ]; then
                words+=("$word")
            elif [ "${#words[@]}" -gt 0 ]; then
                from=${words[0]}
                answer_of "$pattern" "${words[@]}" && break
                answer='' words=()
            fi
        done
        if [ -z "$answer" ] && can_ask; then
            from=you
            read -r -p "$name, $what (Enter: none): " answer || echo
        fi
    fi
    [ -n "$answer" ] || { missing="$missing $name" && return 1; }
    keep "$name" "$answer"
    export "$name=$answer"
    echo "  $name=$answer (from $from)"
}

# A secret is kept only if it is typed here, and never printed.
settle_secret() {
    local answer=''
    [ -z "${!1:-}" ] || { echo "  $1 is set"; return; }
    if can_ask; then
        read -rs -p "$1, $2 (Enter: none; hidden, kept in .env): " answer
        echo
    fi
    [ -n "$answer" ] || { missing="$missing $1" && return; }
    keep "$1" "$answer"
}

# shellcheck source=set_env.sh
. ./set_env.sh || exit 1

if ! command -v make >/dev/null; then
    problem "make is missing: sudo apt install make, or xcode-select --install."
elif ! make --no-print-directory install </dev/null; then
    problem ".venv could not be made; the reason is above."
fi

if [ ! -e "$env_file" ]; then
    echo "# Settings; core/settings.py says what each one means. The environment wins." >"$env_file"
fi
chmod 600 "$env_file"
[ -z "$(tail -c 1 "$env_file")" ] || echo >>"$env_file"

echo "Settings:"
export CLOUDSDK_CORE_DISABLE_PROMPTS=1
value='^[A-Za-z0-9][A-Za-z0-9.:_-]*$'
if settle GOOGLE_CLOUD_PROJECT "the Google Cloud project" "$value" gcloud config get-value project; then
    settle GOOGLE_CLOUD_LOCATION "the region of Cloud Run" '^[a-z]+-[a-z]+[0-9]+$' \
        gcloud config get-value run/region -- gcloud config get-value compute/region
    settle GOOGLE_CLOUD_ZONE "the zone of Cloud TPU" '^[a-z]+-[a-z]+[0-9]+-[a-z]$' \
        gcloud config get-value compute/zone
fi
if settle AZURE_SUBSCRIPTION_ID "the Azure subscription" '^[0-9a-fA-F-]{36}$' \
    az account show --query id --output tsv; then
    settle AZURE_LOCATION "the Azure region" "$value" \
        az config get defaults.location --query value --output tsv
fi
settle_secret HF_TOKEN "a Hugging Face token for gated models"

for name in $missing; do
    case $name in
        GOOGLE_CLOUD_PROJECT) echo "  $name is missing: nothing can be deployed on Google Cloud." ;;
        GOOGLE_CLOUD_*) echo "  $name is missing: calls on Google Cloud must name it." ;;
        AZURE_SUBSCRIPTION_ID) echo "  $name is missing: nothing can be deployed on Azure." ;;
        AZURE_*) echo "  $name is missing: calls on Azure must name it." ;;
        HF_TOKEN) echo "  $name is missing: gated models cannot be downloaded; others can." ;;
    esac
done
echo "This machine needs none of them: the target 'local' works without."

if [ "$problems" -gt 0 ]; then
    echo "Not ready: see above, then run ./init.sh again." >&2
    exit 1
fi
cat <<'END'

Next:
  make demo            deploy, look, ask, measure and destroy, on this machine
  make mcp-config      what to tell your MCP client; CLIENT=…: one alone
  make doctor          what is missing on this machine
  make vllm            install a real vLLM for CPUs
  source set_env.sh    the same settings in your shell
END
