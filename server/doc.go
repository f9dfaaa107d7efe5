// Package server has the gRPC services of a node: QueueService for clients and AdminService for operators.
//
// One call through it: the request is checked against every limit, names become numbers, and a transaction is encoded
// (validate.go, publish.go, commit.go); replication commits it; the store applies it; the answer is made from the
// result (convert.go). Errors of all packages become gRPC statuses in one place (errors.go). Consume hands over to
// package dispatch.
//
// What the node does at the moment is in the Session: there is one while the node is active, and none otherwise.
// Package server/node makes and ends them; server/config has the settings.
package server
