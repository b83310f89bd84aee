#!/usr/bin/env bash
# The settings of vllm-devops-agent, from the environment and from .env:
#
#     source set_env.sh    exports them in this shell, bash or zsh
#     ./set_env.sh         prints them, without secrets; your shell stays as it is
#
# What is already set wins over .env. Sourced, it hands over finished lines from a process of its
# own, so that neither a function, a variable, an option nor an `exit` of it reaches your shell.

if [ -z "${BASH_VERSION:-}${ZSH_VERSION:-}" ]; then
    echo "set_env.sh needs bash or zsh." >&2
    return 2
elif [ -n "${ZSH_VERSION:-}" ]; then
    case "${ZSH_EVAL_CONTEXT:-}" in
        *file*)
            # shellcheck disable=SC2296  # zsh's way to name the file it reads
            eval "$(command env BASH_ENV= bash -- "${(%):-%x}" --lines || echo false)"
            return
            ;;
        *) exec bash -- "$0" "$@" ;;
    esac
elif (return 0 2>/dev/null); then
    eval "$(command env BASH_ENV= bash -- "${BASH_SOURCE[0]}" --lines || echo false)"
    return
fi

# From here on this is a bash of its own. The names are the fields of core/settings.py.
names='
    VLLM_TARGET MODEL_NAME VLLM_BASE_URL VLLM_API_KEY VLLM_EXECUTABLE ENGINE HF_TOKEN GOOGLE_API_KEY
    REGISTRY_USERNAME REGISTRY_PASSWORD REGISTRY_SERVER
    TENSOR_PARALLEL_SIZE ACCELERATOR_TYPE
    GOOGLE_CLOUD_PROJECT GOOGLE_CLOUD_LOCATION GOOGLE_CLOUD_ZONE GOOGLE_SERVICE_ACCOUNT BUCKET_NAME
    GOOGLE_ALLOWED_ADDRESSES
    AZURE_SUBSCRIPTION_ID AZURE_RESOURCE_GROUP AZURE_LOCATION AZURE_KEYVAULT_NAME
    AZURE_CONTAINERAPPS_ENVIRONMENT AZURE_ALLOWED_ADDRESSES
    AZURE_STORAGE_ACCOUNT AZURE_LOG_ANALYTICS_WORKSPACE_ID
    ANALYST_BASE_URL ANALYST_API_KEY ANALYST_MODEL
    REHEARSAL PAUSE_SCALE PATIENCE_SCALE READ_ONLY TOOLSETS CONFIRM VLLM_DEVOPS_STATE_DIR
    MCP_BEARER_TOKEN MCP_ALLOWED_HOSTS
'
secrets=' VLLM_API_KEY HF_TOKEN REGISTRY_PASSWORD GOOGLE_API_KEY ANALYST_API_KEY MCP_BEARER_TOKEN '

set -u
shopt -s nocasematch # pydantic-settings reads .env so
file="$(dirname -- "$0")/.env"
assignment='^[[:space:]]*(export[[:space:]]+)?([A-Za-z_][A-Za-z0-9_]*)[[:space:]]*=[[:space:]]*(.*)$'
single="^'([^'\\]*)'[[:space:]]*(#.*)?\$"
double='^"([^"\]*)"[[:space:]]*(#.*)?$'

# Takes what is right of the `=`; leaves in $value what python-dotenv reads there, or fails.
read_value() {
    case $1 in
        *"\${"*) return 1 ;;
        \'*) [[ $1 =~ $single ]] && value=${BASH_REMATCH[1]} ;;
        \"*) [[ $1 =~ $double ]] && value=${BASH_REMATCH[1]} ;;
        *)
            value=${1%%[[:space:]]#*}
            value=${value%"${value##*[![:space:]]}"}
            ;;
    esac
}

# Leaves each setting of .env in a variable `file_NAME`; the last one of a name counts.
read_file() {
    local line number=0 name value
    while IFS= read -r line || [ -n "$line" ]; do
        number=$((number + 1))
        [[ ${line%$'\r'} =~ $assignment ]] || continue
        for name in $names; do
            [[ ${BASH_REMATCH[2]} == "$name" ]] || continue
            if read_value "${BASH_REMATCH[3]}"; then
                printf -v "file_$name" %s "$value"
            else
                echo "set_env.sh: line $number of .env ($name) is left out: write the value" \
                    "without \${…} and, in quotes, without backslashes." >&2
            fi
            break
        done
    done <"$file"
}

if [ -d "$file" ] || { [ -e "$file" ] && [ ! -r "$file" ]; }; then
    echo "set_env.sh: $file cannot be read." >&2
    exit 1
fi
[ ! -e "$file" ] || read_file

# shellcheck disable=SC2016  # the lines are for the shell that evaluates them
for name in $names; do
    in_file=file_$name
    in_file=${!in_file:-}
    if [ "${1:-}" = --lines ]; then
        # For eval: a variable that was set without export counts as set.
        [ -z "$in_file" ] || printf '[ -n "${%s:-}" ] || export %s=%q\n' "$name" "$name" "$in_file"
        printf '[ -z "${%s:-}" ] || export %s\n' "$name" "$name"
    elif [ -z "${!name:-$in_file}" ]; then
        continue
    elif [[ $secrets == *" $name "* ]]; then
        echo "# $name is set; a secret is not printed."
    else
        printf 'export %s=%q\n' "$name" "${!name:-$in_file}"
    fi
done
[ "${1:-}" = --lines ] || echo "Nothing was set in your shell: source set_env.sh does that." >&2
