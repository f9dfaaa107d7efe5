//go:build warm

package warm

import (
 _ "github.com/spf13/cobra"
 _ "go.etcd.io/etcd/client/v3"
 _ "go.etcd.io/etcd/server/v3/embed"
 _ "go.uber.org/zap"
 _ "google.golang.org/grpc"
 _ "google.golang.org/grpc/health"
 _ "google.golang.org/grpc/reflection"
 _ "google.golang.org/protobuf/proto"
 _ "google.golang.org/genproto/googleapis/rpc/errdetails"
 _ "github.com/stretchr/testify/require"
 _ "github.com/google/uuid"
 _ "github.com/knadh/koanf/v2"
 _ "github.com/knadh/koanf/parsers/yaml"
 _ "github.com/knadh/koanf/providers/file"
 _ "github.com/knadh/koanf/providers/env/v2"
 _ "github.com/knadh/koanf/providers/posflag"
 _ "github.com/schollz/progressbar/v3"
 _ "github.com/HdrHistogram/hdrhistogram-go"
 _ "github.com/cenkalti/backoff/v5"
 _ "golang.org/x/sys/unix"
 _ "golang.org/x/sync/errgroup"
 _ "github.com/jedib0t/go-pretty/v6/table"
 _ "golang.org/x/term"
 _ "github.com/hashicorp/raft"
 _ "github.com/anishathalye/porcupine"
)
