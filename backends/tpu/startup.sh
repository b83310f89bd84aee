#!/bin/bash
# Makes a VM with TPU chips serve a model: docker, a certificate, the images, its secrets, vLLM and the
# proxy before it.
# Runs at every boot. Each step is told to the console and to Cloud Logging.
# shellcheck disable=SC2016,SC2329  # another shell expands; `again` and `trap` call some functions
set +x
set -euo pipefail
umask 077

# --- decided ---
readonly DEPLOYMENT='gemma'
readonly PROJECT='my-project'
readonly IMAGE='vllm/vllm-tpu:v0.27.0'
readonly KEY_SECRET='vllm-devops-tpu-gemma-api-key'
readonly TOKEN_SECRET=''
readonly PORT='8000'
readonly TLS='yes'
readonly LOG='vllm-devops'
readonly CACHE='/var/lib/vllm-devops/cache'
readonly DOCKER=('--name' 'vllm-devops-gemma' '-e' 'VLLM_API_KEY')
readonly COMMAND=('vllm' 'serve' 'google/gemma-4-E4B-it')
readonly GUARD_IMAGE='docker.io/library/nginx:1.30.0-alpine-slim'
readonly GUARD_DOCKER=('--name' 'vllm-devops-gemma-guard' '-e' 'GUARD_CONFIGURATION=')
readonly GUARD_COMMAND=('/bin/sh' '-c' 'nginx')
# --- to do ---

readonly ROOT=${VLLM_DEVOPS_ROOT:-}
readonly STATE=$ROOT/var/lib/vllm-devops
readonly NAME=vllm-devops-$DEPLOYMENT
readonly METADATA=http://metadata.google.internal/computeMetadata/v1
readonly SECRETS=https://secretmanager.googleapis.com/v1/projects/$PROJECT/secrets
readonly ENTRIES=https://logging.googleapis.com/v2/entries:write
ending=unforeseen untold=no
exec 3>&1

metadata() {
  curl --silent --fail --max-time 10 --header 'Metadata-Flavor: Google' "$METADATA/$1"
}

# field PATH: reads one value out of JSON.
field() {
  python3 -I -S -c 'import json, sys
said = json.load(sys.stdin)
for name in sys.argv[1].split("."):
    said = said[name]
print(said, end="")' "$1" 2>/dev/null
}

access_token() {
  metadata instance/service-accounts/default/token | field access_token
}

# google ARGUMENTS…: asks Google as the VM's account; the token goes through a pipe, no argument.
google() {
  local token
  token=$(access_token) || { echo "The VM has no access token." >&2; return 1; }
  curl --silent --show-error --fail --max-time 20 \
    --config <(printf 'header = "Authorization: Bearer %s"\n' "$token") "$@"
}

entry() {
  python3 -I -S -c 'import json, sys
project, log, deployment, phase, message = sys.argv[1:]
bad = phase in ("failed", "ended")
print(json.dumps({
    "logName": f"projects/{project}/logs/{log}",
    "resource": {"type": "global", "labels": {"project_id": project}},
    "entries": [{
        "severity": "ERROR" if bad else "INFO",
        "labels": {"deployment": deployment, "phase": phase},
        "jsonPayload": {"phase": phase, "message": message},
    }],
}))' "$PROJECT" "$LOG" "$DEPLOYMENT" "$1" "$2"
}

# tell PHASE MESSAGE: where it cannot be logged, the console alone has it.
# What ends it all is tried for longer: a chip that serves nothing bills until somebody hears of it.
tell() {
  local left=3
  [[ $1 != failed && $1 != ended ]] || left=20
  printf 'vllm-devops: %s: %s\n' "$1" "$2" >&3
  while [[ $left -gt 0 ]]; do
    entry "$1" "$2" | google --output /dev/null --header 'Content-Type: application/json' \
      --data-binary @- "$ENTRIES" 2>/dev/null && return 0
    left=$((left - 1))
    sleep 2
  done
  [[ $1 != certificate ]] || untold=yes
  printf 'vllm-devops: Cloud Logging did not take that.\n' >&3
}

give_up() {
  ending=told
  tell failed "$1"
  exit 1
}

at_the_end() {
  local code=$?
  [[ $code == 0 || $ending == told ]] || tell failed "The startup script ended with code $code."
}
trap at_the_end EXIT

# again TIMES SECONDS PHASE COMMAND…: tries until it succeeds; each further try is told.
again() {
  local times=$1 pause=$2 phase=$3 tried=1
  shift 3
  until "$@" 2>"$STATE/said"; do
    [[ $tried -lt $times ]] || return 1
    tried=$((tried + 1))
    tell "$phase" "Try $tried of $times, for: $(last_words)"
    sleep "$pause"
  done
}

# last_words: what a program complained of; docker ends by telling where its help is.
last_words() {
  sed --regexp-extended "/^\$|^(See|Run) 'docker/d" "$STATE/said" | tail --lines 1 |
    cut --characters 1-300
}

# Ubuntu updates itself within the hour: docker is restarted then, its containers are not, and this
# script is ended by the update of what runs it.
no_updates() {
  timeout 120 systemctl stop apt-daily.timer apt-daily-upgrade.timer \
    apt-daily.service apt-daily-upgrade.service >/dev/null 2>&1 || true
}

packages() {
  export DEBIAN_FRONTEND=noninteractive NEEDRESTART_SUSPEND=1
  apt-get -o DPkg::Lock::Timeout=900 update >/dev/null &&
    apt-get -o DPkg::Lock::Timeout=900 install --yes docker.io >/dev/null
}

have_docker() {
  if ! command -v docker >/dev/null; then
    tell 'installing docker' 'The image of this VM has none.'
    again 6 20 'installing docker' packages || give_up "Docker cannot be installed: $(last_words)"
  fi
  again 12 5 'installing docker' docker version >/dev/null ||
    give_up "Docker does not run: $(last_words)"
}

# Of the addresses that the VM has now: trusted by whoever reads it in the project's log.
certificate() {
  local address names='DNS:localhost,IP:127.0.0.1' card=instance/network-interfaces/0
  for address in $(metadata $card/access-configs/0/external-ip || true) \
    $(metadata $card/ip || true); do
    names+=",IP:$address"
  done
  mkdir -p "$STATE/tls"
  cat >"$STATE/tls/request" <<END
[req]
distinguished_name = name
x509_extensions = extensions
prompt = no
[name]
CN = $NAME
[extensions]
subjectAltName = $names
basicConstraints = critical, CA:TRUE, pathlen:0
keyUsage = critical, digitalSignature, keyCertSign
extendedKeyUsage = serverAuth
subjectKeyIdentifier = hash
END
  openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 3650 \
    -config "$STATE/tls/request" -keyout "$STATE/tls/key.pem" -out "$STATE/tls/cert.pem" \
    2>"$STATE/said" || give_up "No certificate can be made: $(last_words)"
  tell_certificate
}

tell_certificate() {
  untold=no
  tell certificate "$(<"$STATE/tls/cert.pem")"
}

# log_in IMAGE: Google's own registries are shown the VM's account; others are public.
log_in() {
  case ${1%%/*} in
    *.pkg.dev | gcr.io | *.gcr.io) ;;
    *) return 0 ;;
  esac
  access_token | docker login --username oauth2accesstoken --password-stdin "https://${1%%/*}"
}

pulled() {
  log_in "$1" >/dev/null && docker pull --quiet "$1" >/dev/null
}

pull() {
  local image
  export DOCKER_CONFIG=$STATE/docker
  tell 'pulling image' "$IMAGE"
  for image in "$GUARD_IMAGE" "$IMAGE"; do
    again 6 20 'pulling image' pulled "$image" || give_up "$image cannot be pulled: $(last_words)"
  done
  rm -rf "$DOCKER_CONFIG"
}

secret() {
  google "$SECRETS/$1/versions/latest:access" | field payload.data | base64 --decode
}

# read_secret NAME: who may read it may take minutes to be known everywhere.
read_secret() {
  again 12 15 'reading secrets' secret "$1" || give_up "The secret $1 cannot be read: $(last_words)"
}

serve() {
  local key token=
  tell 'reading secrets' "$KEY_SECRET $TOKEN_SECRET"
  key=$(read_secret "$KEY_SECRET") || { ending=told; exit 1; }
  [[ -n $key ]] || give_up "The secret $KEY_SECRET is empty."
  if [[ -n $TOKEN_SECRET ]]; then
    token=$(read_secret "$TOKEN_SECRET") || { ending=told; exit 1; }
  fi
  tell 'starting engine' "${COMMAND[*]}"
  mkdir -p "$ROOT$CACHE"
  again 6 20 'starting engine' started ||
    give_up "The container cannot be started: $(last_words)"
}

# started: docker refuses it while it may not log, as long as a grant is not known everywhere.
started() {
  docker rm --force "$NAME" "$NAME-guard" >/dev/null 2>&1 || true
  docker run --detach "${GUARD_DOCKER[@]}" "$GUARD_IMAGE" "${GUARD_COMMAND[@]}" >/dev/null &&
    VLLM_API_KEY=$key HF_TOKEN=$token docker run --detach "${DOCKER[@]}" "$IMAGE" "${COMMAND[@]}" \
      >/dev/null
}

# healthy: through the proxy, as callers ask.
healthy() {
  local address=http://127.0.0.1:$PORT/health trusted=()
  if [[ $TLS == yes ]]; then
    address=https://127.0.0.1:$PORT/health trusted=(--cacert "$STATE/tls/cert.pem")
  fi
  curl --silent --fail --max-time 10 --output /dev/null "${trusted[@]}" "$address"
}

# look: what the container does, the code it ended with, and how often it was started again.
look() {
  local tried
  for tried in {1..12}; do
    docker inspect --format '{{.State.Status}} {{.State.ExitCode}} {{.RestartCount}}' "$NAME" \
      2>"$STATE/said" && return 0
    [[ $tried == 12 ]] || sleep 5
  done
  return 1
}

# An engine that has never served ends for good; one that has is started again, three times.
watch() {
  local seen state code restarts before=0 ready=no
  while seen=$(look); do
    read -r state code restarts <<<"$seen"
    if [[ $state == exited || $state == dead ]]; then
      ending=told
      tell ended "The engine ended with exit code $code."
      exit 1
    fi
    if [[ $restarts != "$before" ]]; then
      before=$restarts ready=no
      # Docker forgets the code of a container that it starts again (moby, State.SetRunning).
      tell 'starting engine' 'The engine ended and is started again.'
    fi
    if [[ $ready == no ]] && healthy; then
      ready=yes
      [[ $untold == no ]] || tell_certificate
      tell ready "${COMMAND[*]}"
      docker update --restart on-failure:3 "$NAME" >/dev/null 2>&1 || true
    fi
    sleep 5
  done
  give_up "The container is gone: $(last_words)"
}

mkdir -p "$STATE"
tell booting "$(uname --kernel-release)"
no_updates
have_docker
if [[ $TLS == yes ]]; then
  certificate
fi
pull
serve
watch
