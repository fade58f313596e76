#!/bin/bash
# What a container of this image runs. `driver` and `executor` are how Spark on Kubernetes starts its pods, with these variables; anything
# else is a command. A test starts each.
set -euo pipefail

case "${1:-}" in
  driver)
    shift
    command=(
      "$SPARK_HOME/bin/spark-submit"
      --conf "spark.driver.bindAddress=$SPARK_DRIVER_BIND_ADDRESS"
      --deploy-mode client
      "$@"
    )
    ;;
  executor)
    options=()
    for ((number = 0; ; number++)); do
      name="SPARK_JAVA_OPT_$number"
      [[ -v $name ]] || break
      options+=("${!name}")
    done
    command=(
      java "${options[@]}" "-Xms$SPARK_EXECUTOR_MEMORY" "-Xmx$SPARK_EXECUTOR_MEMORY"
      -cp "${SPARK_CONF_DIR:-$SPARK_HOME/conf}:${SPARK_CLASSPATH:-}:$SPARK_HOME/jars/*:${SPARK_EXTRA_CLASSPATH:-}"
      org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend
      --driver-url "$SPARK_DRIVER_URL"
      --executor-id "$SPARK_EXECUTOR_ID"
      --cores "$SPARK_EXECUTOR_CORES"
      --app-id "$SPARK_APPLICATION_ID"
      --hostname "$SPARK_EXECUTOR_POD_IP"
      --resourceProfileId "$SPARK_RESOURCE_PROFILE_ID"
      --podName "$SPARK_EXECUTOR_POD_NAME"
    )
    ;;
  *)
    command=("$@")
    ;;
esac

exec tini -s -- "${command[@]}"
