#!/bin/bash
# What a VM's startup script calls, by the name it is called by. $VM holds what the cloud has.
set -u
said=$(printf '%s\037' "${0##*/}" "$@")
printf '%s\036' "$said" >>"$VM/calls"

# fails WHAT: as often as the file fails-WHAT says.
fails() {
  local left
  left=$(cat "$VM/fails-$1" 2>/dev/null) || return 1
  [[ $left -gt 0 ]] || return 1
  printf '%s' "$((left - 1))" >"$VM/fails-$1"
}

refused() {
  echo "curl: (22) The requested URL returned error: $1" >&2
  exit 22
}

fake_curl() {
  local url=${!#} authorization='' data='' known='' flavour=no trusted=''
  while [[ $# -gt 0 ]]; do
    case $1 in
      --config) authorization=$(cat "$2") ;;
      --data-binary) data=$(cat) ;;
      --cacert) trusted=$(cat "$2") ;;
      --header) [[ $2 == 'Metadata-Flavor: Google' ]] && flavour=yes ;;
    esac
    shift
  done
  [[ $authorization == 'header = "Authorization: Bearer ya29.of-the-vm"' ]] && known=yes
  case $url in
    http://metadata.google.internal/*) [[ $flavour == yes ]] || refused 403 ;;
    https://*.googleapis.com/*) [[ $known == yes ]] || refused 401 ;;
  esac
  case $url in
    */service-accounts/default/token)
      fails token && refused 404
      printf '{"access_token": "ya29.of-the-vm", "expires_in": 3000, "token_type": "Bearer"}' ;;
    */access-configs/0/external-ip) cat "$VM/external-ip" 2>/dev/null || refused 404 ;;
    */network-interfaces/0/ip) printf 10.0.0.2 ;;
    */v2/entries:write)
      fails logs && refused 403
      printf '%s\n' "$data" >>"$VM/entries" ;;
    */versions/latest:access)
      fails secret && refused 403
      url=${url%/versions/latest:access}
      [[ -e $VM/secret-${url##*/} ]] || refused 404
      printf '{"name": "n", "payload": {"data": "%s", "dataCrc32c": "1"}}' \
        "$(base64 --wrap=0 "$VM/secret-${url##*/}")" ;;
    */health)
      printf '%s' "$trusted" >"$VM/trusted"
      fails health && refused 503
      true ;;
    *) refused 404 ;;
  esac
}

fake_docker() {
  case $1 in
    version) fails daemon && { echo 'Cannot connect to the Docker daemon.' >&2; exit 1; } ;;
    login)
      # As docker does, where no other store is set up.
      mkdir -p "$DOCKER_CONFIG" && cat >"$DOCKER_CONFIG/config.json"
      cp "$DOCKER_CONFIG/config.json" "$VM/login" ;;
    pull)
      fails pull && { echo 'Error: manifest unknown' >&2; exit 1; } ;;
    run)
      printf '%s\n' "key=${VLLM_API_KEY-none}" "token=${HF_TOKEN-none}" >"$VM/run"
      fails run && {
        echo 'docker: failed to initialize logging driver' >&2
        printf "\nRun 'docker run --help' for more information\n" >&2
        exit 125
      } ;;
    inspect)
      fails inspect && { echo 'Error: No such object' >&2; exit 1; }
      head --lines 1 "$VM/states"
      # The last state stays.
      [[ $(wc --lines <"$VM/states") -le 1 ]] || sed --in-place 1d "$VM/states" ;;
  esac
  true
}

fake_apt_get() {
  fails apt && { echo 'E: Could not get lock /var/lib/dpkg/lock-frontend' >&2; exit 100; }
  [[ $* != *docker.io* ]] || cp "$0" "${0%/*}/docker"
}

case ${0##*/} in
  curl) fake_curl "$@" ;;
  docker) fake_docker "$@" ;;
  apt-get) fake_apt_get "$@" ;;
  uname) echo 6.8.0 ;;
esac
