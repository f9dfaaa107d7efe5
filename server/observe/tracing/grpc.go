// SPDX-License-Identifier: Apache-2.0

package tracing

import (
	"strings"

	"go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc/otelgrpc"
	"google.golang.org/grpc"
	"google.golang.org/grpc/stats"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// ServerOption returns the option that enables tracing of the calls to a gRPC server.
func (t *Tracer) ServerOption() grpc.ServerOption {
	return grpc.StatsHandler(otelgrpc.NewServerHandler(
		otelgrpc.WithTracerProvider(t.provider), otelgrpc.WithPropagators(t.carrier), otelgrpc.WithFilter(traceFilter()),
	))
}

// DialOption returns the option that enables tracing of the calls on a connection.
func (t *Tracer) DialOption() grpc.DialOption {
	return grpc.WithStatsHandler(otelgrpc.NewClientHandler(
		otelgrpc.WithTracerProvider(t.provider), otelgrpc.WithPropagators(t.carrier), otelgrpc.WithFilter(traceFilter()),
	))
}

// traceFilter selects unary calls. Periodic calls between nodes or sites and health checks are not traced.
func traceFilter() otelgrpc.Filter {
	unwanted := map[string]bool{
		pb.AdminService_GetStatus_FullMethodName: true, pb.ReplicationService_Handshake_FullMethodName: true,
		pb.SiteService_GetSite_FullMethodName: true, pb.SiteService_ReportPosition_FullMethodName: true,
	}
	for _, service := range []*grpc.ServiceDesc{
		&pb.QueueService_ServiceDesc, &pb.AdminService_ServiceDesc, &pb.MaintenanceService_ServiceDesc,
		&pb.AccessService_ServiceDesc, &pb.AuditService_ServiceDesc, &pb.ReplicationService_ServiceDesc,
		&pb.SiteService_ServiceDesc, &pb.FleetService_ServiceDesc,
	} {
		for i := range service.Streams {
			unwanted["/"+service.ServiceName+"/"+service.Streams[i].StreamName] = true
		}
	}
	return func(call *stats.RPCTagInfo) bool {
		return strings.HasPrefix(call.FullMethodName, "/lockstep.") && !unwanted[call.FullMethodName]
	}
}
