// Package server has the rooms of a node, and the gRPC server itself.
//
// The services are server/queue for clients, server/admin for operators and server/maintenance/rpc for the upkeep of a
// pair. Each turns calls into what the packages below it do; server/wire has all conversions between protobuf and those
// packages, and the one table of errors. No service knows another one: server/node makes them, and registers them with
// the server here.
//
// One call: the request is checked against every limit, names become numbers, and a transaction is encoded
// (server/queue); replication commits it; the store applies it; the answer is made from the result. Consume hands over
// to server/dispatch.
package server
