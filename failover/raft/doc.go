// Package raftcoord is the coordinator for a pair that has no etcd: three voters of hashicorp/raft, one in each data node and
// one in a witness, a process that does nothing else.
package raftcoord
