#!/bin/bash
# Stands for curl, docker, apt-get, systemctl, sleep and uname of a simulated VM: it asks the simulator
# what they would do, says that, and ends as they would. Nothing of a VM outlives its simulator.
set -u
given=()
for word in "$@"; do
  case $word in
    @- | --password-stdin) IFS= read -r -d '' input ;;
    /dev/fd/*) IFS= read -r -d '' word <"$word" ;;
  esac
  given+=("$word")
done
{ exec 9<>"/dev/tcp/127.0.0.1/$VM_PORT"; } 2>/dev/null || kill -KILL 0
printf '%s\0' "$VM_PASSWORD" "${0##*/}" "${VLLM_API_KEY-}" "${HF_TOKEN-}" "${input-}" \
  "$#" ${given[@]+"${given[@]}"} >&9
IFS= read -r -d '' status <&9 || kill -KILL 0
IFS= read -r -d '' said <&9
IFS= read -r -d '' complained <&9
printf '%s' "$said"
printf '%s' "$complained" >&2
exit "$status"
