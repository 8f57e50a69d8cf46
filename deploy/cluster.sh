#!/bin/bash
# A cluster of containers from nothing to a trained model and back to nothing: image (built from
# source), keys, network, 1 server + WORKERS workers, the run, its result; then all of it is removed,
# the images too unless KEEP_IMAGES is set. `make cluster` runs it. Needs Docker and docker-compose
# (1.29 or v2), and the images of digits (deploy/data.sh).
#
#   WORKERS=3 CUDA=0 KEEP_IMAGES= deploy/cluster.sh      CNN_MODEL, CNN_EPOCHS, ... go to the server
set -eu
cd "$(dirname "$0")/.."
workers=${WORKERS:-3}
limit=900 # seconds for the training
export COMPOSE_PROJECT_NAME=cnn-cluster-$$ CNN_IMAGE=cnn-ps:cluster-$$
export CNN_MIN_WORKERS=${CNN_MIN_WORKERS:-$workers} CNN_SEED=${CNN_SEED:-7}

say() {
	echo "cluster: $*" >&2
}

if docker compose version >/dev/null 2>&1; then
	compose() { docker compose -f deploy/compose.yaml "$@"; }
elif command -v docker-compose >/dev/null; then
	compose() { docker-compose -f deploy/compose.yaml "$@"; }
else
	say "there is neither 'docker compose' nor docker-compose"
	exit 2
fi
docker info >/dev/null 2>&1 || {
	say "no Docker engine answers (deploy/docker_engine.sh start installs and starts one on Debian)"
	exit 2
}

cleanup() {
	compose down --volumes --timeout 5 >/dev/null 2>&1 || say "could not take everything down"
	[ -z "$follower" ] || kill "$follower" 2>/dev/null || true
	[ -n "${KEEP_IMAGES-}" ] || {
		docker image rm -f "$CNN_IMAGE" >/dev/null 2>&1 || true
		docker image prune -f --filter label=cnn-ps >/dev/null || true
		[ -z "$made_base" ] || docker image rm "$made_base" >/dev/null 2>&1 || true
	}
}
follower="" made_base=""
trap cleanup EXIT
trap 'exit 130' INT TERM HUP

had_base=$(docker images -q cnn-ps-base:bookworm)
base=$(deploy/base_image.sh)
[ "$base" != cnn-ps-base:bookworm ] || [ -n "$had_base" ] || made_base=$base
say "building the image from source"
docker build -q -f deploy/Dockerfile --build-arg "BASE=$base" --build-arg "CUDA=${CUDA:-0}" \
	-t "$CNN_IMAGE" . >/dev/null
if command -v curl >/dev/null || [ -n "${CNN_DATA-}" ]; then
	CNN_IMAGES=$(deploy/data.sh)
else
	docker run --rm -v "$PWD:/src" "$base" sh -euc 'apt-get update -q >/dev/null
		apt-get install -q -y --no-install-recommends curl ca-certificates >/dev/null 2>&1
		/src/deploy/data.sh >/dev/null'
	CNN_IMAGES=$PWD/data/mnist
fi
export CNN_IMAGES

say "1 server + $workers workers"
compose up -d --scale worker="$workers" >/dev/null 2>&1 || {
	compose logs --tail 20 >&2
	exit 1
}
server=$(compose ps -q server)
docker logs -f "$server" >&2 &
follower=$!
code=$(timeout "$limit" docker wait "$server") || {
	say "not done after $limit s"
	exit 1
}
docker logs "$server" 2>/dev/null | tail -n 1
[ "$code" = 0 ] || {
	say "the server ended with status $code"
	exit 1
}
for id in $(compose ps -q worker); do
	code=$(timeout 30 docker wait "$id")
	[ "$code" = 0 ] || say "a worker ended with status $code"
done
