"""Train with TensorFlow's parameter server strategy: the coordinator schedules one step per
batch."""
import json
import os
import sys
import time

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import tensorflow as tf
from applied import BATCHES, STEP_S, named, note

role, index = sys.argv[1], int(sys.argv[2])
cluster = tf.train.ClusterSpec(json.loads(os.environ["PEER_CLUSTER"]))
named(f"{role}{index}")
if role != "chief":
    tf.distribute.Server(cluster, job_name=role, task_index=index, protocol="grpc").join()
resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(cluster, task_type="chief", task_id=0,
                                                                rpc_layer="grpc")
strategy = tf.distribute.ParameterServerStrategy(resolver)
coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
with strategy.scope():
    weights = tf.Variable(tf.zeros([784, 10]))


@tf.function
def step(batch):
    def replica(batch):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(tf.matmul(tf.random.normal([100, 784]), weights) - 1))
        weights.assign_sub(0.01 * tape.gradient(loss, weights))
        return batch
    return strategy.run(replica, args=(batch,))


waiting = []
for batch in range(BATCHES):
    waiting.append(coordinator.schedule(step, args=(tf.constant(batch),)))
    if len(waiting) == 3:
        note(int(waiting.pop(0).fetch()))
        time.sleep(STEP_S / 3)
