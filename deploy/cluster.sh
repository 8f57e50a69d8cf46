#!/bin/bash
# Train in a cluster of containers. The script builds the image from source, makes keys and a
# network, starts 1 server and WORKERS workers, prints the result of the run, and at last removes
# everything; KEEP_IMAGES=1 keeps the images. `make cluster` runs it. The script needs a running
# Docker engine (deploy/docker_engine.sh) and docker-compose, 1.29 or v2.
#
#   WORKERS=3 CUDA=0 KEEP_IMAGES= deploy/cluster.sh      the server gets CNN_MODEL, CNN_EPOCHS, ...
set -eu
cd "$(dirname "$0")/.."
workers=${WORKERS:-3}
limit=900 # maximum seconds for the training
export COMPOSE_PROJECT_NAME=cnn-cluster-$$ CNN_IMAGE=cnn-ps:cluster-$$
export CNN_MIN_WORKERS=${CNN_MIN_WORKERS:-$workers} CNN_SEED=${CNN_SEED:-7}
logs=build/docker
tags="" follower="" composed=""

say() {
	echo "cluster: $*" >&2
}

compose() {
	if docker compose version >/dev/null 2>&1; then
		docker compose -f deploy/compose.yaml "$@"
	else
		docker-compose -f deploy/compose.yaml "$@"
	fi
}

there() {
	docker image inspect "$1" >/dev/null 2>&1
}

cleanup() {
	[ -z "$composed" ] || compose --profile gpu down --volumes --timeout 5 >/dev/null 2>&1 ||
		say "could not take everything down: docker ps --filter name=$COMPOSE_PROJECT_NAME"
	[ -z "$follower" ] || kill "$follower" 2>/dev/null || true
	# shellcheck disable=SC2086 # one word per image
	[ -n "${KEEP_IMAGES-}" ] || [ -z "$tags" ] || docker image rm -f $tags >/dev/null 2>&1 || true
}
trap cleanup EXIT
trap 'exit 130' INT TERM HUP

# Tag every stage, so that the clean-up can remove it.
build() {
	local had="" stage
	! there debian:bookworm-slim || had=$had:public
	! there cnn-ps-base:bookworm || had=$had:own
	base=$(deploy/base_image.sh)
	case $had,$base in
	*public*,debian:* | *own*,cnn-ps-base:*) ;;
	*) tags=$base ;;
	esac
	say "building the image from source"
	mkdir -p $logs
	for stage in build runtime image; do
		[ $stage = image ] || tags="$CNN_IMAGE-$stage $tags"
		docker build -q --force-rm -f deploy/Dockerfile --build-arg "BASE=$base" \
			--build-arg "CUDA=${CUDA:-0}" --target $stage \
			-t "$CNN_IMAGE-$stage" . >$logs/build.log 2>&1 || {
			tail -n 20 $logs/build.log >&2
			exit 1
		}
	done
	docker tag "$CNN_IMAGE-image" "$CNN_IMAGE"
	tags="$CNN_IMAGE $CNN_IMAGE-image $tags"
}

# Print the directory of the data set. deploy/data.sh finds or downloads the data set, in a
# container if this machine has no curl.
images() {
	local found
	if [ -n "${CNN_DATA-}" ] || command -v curl >/dev/null; then
		deploy/data.sh
		return
	fi
	# shellcheck disable=SC2016 # the shell in the container expands the variables
	found=$(docker run --rm -v "$PWD:/src" "$base" sh -euc '{ apt-get update -q
		apt-get install -q -y --no-install-recommends curl ca-certificates dataset-fashion-mnist
		from=$(/src/deploy/data.sh)
		[ "$from" = /src/data/mnist ] || cp -r "$from" /src/data
		chown -R "$0" /src/data; } >&2
		echo "data/${from##*/}"' "$(id -u):$(id -g)" 2>$logs/data.log) || {
		tail -n 5 $logs/data.log >&2
		return 1
	}
	grep '^data:' $logs/data.log >&2
	echo "$PWD/$found"
}

# Print the containers of a service, including those that have ended.
containers() {
	docker ps -aq --filter label=com.docker.compose.project="$COMPOSE_PROJECT_NAME" \
		--filter label=com.docker.compose.service="$1"
}

docker info >/dev/null 2>&1 || {
	say "no Docker engine answers"
	exit 2
}
docker compose version >/dev/null 2>&1 || command -v docker-compose >/dev/null || {
	say "there is neither 'docker compose' nor docker-compose"
	exit 2
}
build
directory=$(images)
CNN_IMAGES=$(realpath "$directory") # compose resolves relative paths from deploy/
export CNN_IMAGES

say "1 server + $workers workers"
composed=1
compose up -d --scale worker="$workers" >$logs/up.log 2>&1 || {
	compose logs --tail 20 >&2
	tail -n 5 $logs/up.log >&2
	exit 1
}
server=$(containers server)
docker logs -f "$server" >/dev/null &
follower=$!
code=$(timeout "$limit" docker wait "$server") || {
	say "not done after $limit s"
	exit 1
}
wait "$follower"
docker logs "$server" 2>/dev/null
[ "$code" = 0 ] || {
	say "the server ended with status $code"
	exit 1
}
for id in $(containers worker); do
	code=$(timeout 30 docker wait "$id")
	[ "$code" = 0 ] || say "a worker ended with status $code"
done
