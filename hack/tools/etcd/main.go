// etcd of the version that kubeadm installs with this Kubernetes version. kube-apiserver serves lists from its cache only with a recent etcd.
package main

import (
	"os"

	"go.etcd.io/etcd/server/v3/etcdmain"
)

func main() { etcdmain.Main(os.Args) }
