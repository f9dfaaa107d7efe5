// SPDX-License-Identifier: Apache-2.0

package tracing

import (
	"strings"

	"go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc/otelgrpc"
	"google.golang.org/grpc"
	"google.golang.org/grpc/stats"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// ServerOption has calls of a gRPC server traced.
func (t *Tracer) ServerOption() grpc.ServerOption {
	return grpc.StatsHandler(otelgrpc.NewServerHandler(
		otelgrpc.WithTracerProvider(t.provider), otelgrpc.WithPropagators(t.carrier), otelgrpc.WithFilter(wanted()),
	))
}

// DialOption has calls of a connection traced.
func (t *Tracer) DialOption() grpc.DialOption {
	return grpc.WithStatsHandler(otelgrpc.NewClientHandler(
		otelgrpc.WithTracerProvider(t.provider), otelgrpc.WithPropagators(t.carrier), otelgrpc.WithFilter(wanted()),
	))
}

// wanted tells which calls have a span: those with one request and one answer. A stream may last for weeks; what is
// published on one is traced request by request. What nodes ask again and again is not traced, nor is the health.
func wanted() otelgrpc.Filter {
	unwanted := map[string]bool{
		pb.AdminService_GetStatus_FullMethodName: true, pb.ReplicationService_Meet_FullMethodName: true,
	}
	for _, service := range []*grpc.ServiceDesc{
		&pb.QueueService_ServiceDesc, &pb.AdminService_ServiceDesc, &pb.MaintenanceService_ServiceDesc,
		&pb.AccessService_ServiceDesc, &pb.AuditService_ServiceDesc, &pb.ReplicationService_ServiceDesc,
	} {
		for i := range service.Streams {
			unwanted["/"+service.ServiceName+"/"+service.Streams[i].StreamName] = true
		}
	}
	return func(call *stats.RPCTagInfo) bool {
		return strings.HasPrefix(call.FullMethodName, "/lockstep.") && !unwanted[call.FullMethodName]
	}
}
