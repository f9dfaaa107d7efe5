// SPDX-License-Identifier: Apache-2.0

package mover

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"google.golang.org/grpc"

	"github.com/lockstep-mq/lockstep/fleet"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/proto/tlsfiles"
	"github.com/lockstep-mq/lockstep/server/api/apierror"
	"github.com/lockstep-mq/lockstep/server/auth/secretfile"
	"github.com/lockstep-mq/lockstep/server/peerclient"
	"github.com/lockstep-mq/lockstep/store/txn"
)

// TokenKey is the metadata key of the secret that the pairs of a fleet share.
const TokenKey = "lockstep-fleet-token" //nolint:gosec // a metadata key, not a secret

const (
	// findTimeout limits the request for the state of a node of another pair, and the wait for the directory in
	// Manager.Drop.
	findTimeout = 2 * time.Second
	// responseBytes is the maximum size of a response with several messages.
	responseBytes = 512 << 10
)

// errUnreachable is returned if no node of the other pair responds as its active.
var errUnreachable = errors.New("no active node of the other pair responds")

// DialOptions returns the options for connections to other pairs: TLS credentials from files, and a token from secrets.
// Both arguments may be nil.
func DialOptions(files *tlsfiles.Source, secrets *secretfile.File) (options []grpc.DialOption) {
	if files != nil {
		options = append(options, grpc.WithTransportCredentials(files.Credentials(nil)))
	}
	if secrets != nil {
		options = append(options, grpc.WithPerRPCCredentials(peerclient.Credentials(TokenKey, secrets)))
	}
	return options
}

// pairs contains the connections to the nodes of other pairs.
type pairs struct{ *peerclient.Remotes }

func (s pairs) client(address string) (pb.FleetServiceClient, error) {
	c, err := s.Conn(address)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errUnreachable, err)
	}
	return pb.NewFleetServiceClient(c), nil
}

// find returns a client of the active of the source of a move, and its response to GetMoveSource. The error wraps
// txn.ErrQueueNotFound if the source does not have one of the queues, and otherwise errUnreachable.
func (s pairs) find(
	ctx context.Context, d *fleet.Directory, move fleet.Move,
) (pb.FleetServiceClient, *pb.GetMoveSourceResponse, error) {
	addresses := d.PairAddresses(move.From)
	s.Forget(func(address string, failed bool) bool { return failed && !slices.Contains(addresses, address) })
	var failed []error
	for _, address := range addresses {
		c, err := s.client(address)
		if err != nil {
			failed = append(failed, err)
			continue
		}
		limited, cancel := context.WithTimeout(ctx, findTimeout)
		resp, err := c.GetMoveSource(limited, &pb.GetMoveSourceRequest{
			Epoch: move.Epoch, Pair: move.From, Queues: move.Queues,
		})
		cancel()
		if err == nil {
			return c, resp, nil
		}
		if err = fromStatus(err); errors.Is(err, txn.ErrQueueNotFound) {
			return nil, nil, err
		}
		failed = append(failed, fmt.Errorf("%s: %w", address, err))
	}
	return nil, nil, fmt.Errorf("%w: %s: %v", errUnreachable, move.From, errors.Join(failed...)) //nolint:errorlint // text
}

// call sends a request to the active of a pair.
func (s pairs) call(
	ctx context.Context, d *fleet.Directory, epoch uint64, pair string,
	request func(context.Context, pb.FleetServiceClient) error,
) error {
	c, _, err := s.find(ctx, d, fleet.Move{Epoch: epoch, From: pair})
	if err != nil {
		return err
	}
	limited, cancel := context.WithTimeout(ctx, fenceLimit)
	defer cancel()
	return fromStatus(request(limited, c))
}

func fromStatus(err error) error { return apierror.FromPeer(err, errUnreachable) }
