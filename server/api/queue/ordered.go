// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/server/api/apierror"
	"github.com/lockstep-mq/lockstep/server/auth/access"
	"github.com/lockstep-mq/lockstep/server/delivery/session"
	"github.com/lockstep-mq/lockstep/store/query"
	"github.com/lockstep-mq/lockstep/store/txn"
)

// Lists that are filtered or not ordered by name are computed from samples. At most maxOrders complete orders are
// cached until the next sample, for callers with the same identity.

// maxOrders limits the number of cached orders of one sample.
const maxOrders = 32

type orderKey struct {
	identity         string // caller and generation of the rules; empty while all callers may see all queues
	prefix, contains string
	order            pb.QueueOrder
	descending       bool
}

func ordered(req *pb.ListQueuesRequest) bool {
	return req.GetContains() != "" || req.GetOrder() > pb.QueueOrder_QUEUE_ORDER_NAME || req.GetDescending() ||
		req.GetOffset() > 0 || req.GetActivity()
}

func (s *Service) listOrdered(
	ctx context.Context, session *session.Session, req *pb.ListQueuesRequest,
) (*pb.ListQueuesResponse, error) {
	if err := checkOrdered(req); err != nil {
		return nil, err
	}
	page, total, uncertain := s.orderedPage(ctx, session, req)
	resp := &pb.ListQueuesResponse{Total: uint32(total), OrderUncertain: uncertain}
	subscriptions := 0
	for _, name := range page {
		info, err := query.QueueByName(s.store, name)
		if err != nil {
			continue // the queue was deleted in the meantime
		}
		subscriptions += len(info.Subscriptions)
		if subscriptions > maxPageSubscriptions && len(resp.GetQueues()) > 0 {
			break
		}
		resp.Queues = append(resp.Queues, queueToProto(&info, session))
	}
	if req.GetActivity() {
		s.describeActivity(ctx, session, resp.GetQueues())
	}
	return resp, nil
}

func checkOrdered(req *pb.ListQueuesRequest) error {
	if len(req.GetContains()) > txn.MaxNameBytes {
		return fmt.Errorf("%w: `contains` has %d bytes, maximum is %d", apierror.ErrInvalid, len(req.GetContains()),
			txn.MaxNameBytes)
	}
	if _, known := pb.QueueOrder_name[int32(req.GetOrder())]; !known {
		return fmt.Errorf("%w: unknown order %d", apierror.ErrInvalid, req.GetOrder())
	}
	if req.GetPageToken() != "" {
		return fmt.Errorf("%w: page_token does not support this order or filter; use `offset`", apierror.ErrInvalid)
	}
	return nil
}

func (s *Service) orderedPage(
	ctx context.Context, session *session.Session, req *pb.ListQueuesRequest,
) (page []string, total int, uncertain bool) {
	a := &s.activity
	a.mu.Lock()
	defer a.mu.Unlock()
	a.sample(s.store, session)
	key := orderKey{
		prefix: req.GetPrefix(), contains: strings.ToLower(req.GetContains()), order: req.GetOrder(),
		descending: req.GetDescending(),
	}
	if !s.rules.Open() {
		id := access.FromContext(ctx)
		key.identity = fmt.Sprintf("%d %v %q %q", s.rules.Generation(), id.Method, id.Principal, id.Groups)
	}
	list, found := a.orders[key]
	if !found {
		for i := range a.queues {
			q := &a.queues[i]
			if strings.HasPrefix(q.Name, key.prefix) && containsFold(q.Name, key.contains) &&
				(key.identity == "" || s.maySee(ctx, q.Name) == nil) {
				list = append(list, i)
			}
		}
		if key.order == pb.QueueOrder_QUEUE_ORDER_AGE {
			uncertain = s.findAges(ctx, list)
		}
		a.sort(list, key.order, key.descending)
		if len(a.orders) < maxOrders && !uncertain {
			a.orders[key] = list
		}
	}
	size := pageSize(req.GetPageSize(), maxPageSize)
	for _, at := range list[min(int(req.GetOffset()), len(list)):] {
		if len(page) == size {
			break
		}
		page = append(page, a.queues[at].Name)
	}
	return page, len(list), uncertain
}

func containsFold(name, lower string) bool {
	return lower == "" || strings.Contains(strings.ToLower(name), lower)
}

// findAges sets acceptMS of the queues with the given indexes. It reports whether some ages are unknown. The caller
// must hold activity.mu.
func (s *Service) findAges(ctx context.Context, list []int) (incomplete bool) {
	a := &s.activity
	a.evictAges()
	a.agesMu.Lock()
	defer a.agesMu.Unlock()
	deadline := time.Now().Add(agesLimit)
	for _, i := range list {
		q := &a.queues[i]
		at, known := a.oldest(ctx, s.store, q.ID, deadline)
		switch {
		case !known:
			incomplete = true
			q.acceptMS = math.MaxInt64
			if last, ok := a.ages[q.ID]; ok {
				q.acceptMS = last.accepted.UnixMilli() // a lower bound, because the current oldest message is newer
			}
		case at.IsZero():
			q.acceptMS = math.MaxInt64
		default:
			q.acceptMS = at.UnixMilli()
		}
	}
	return incomplete
}

// sort sorts the indexes of queues by the given order. Queues that are equal in this order are sorted by name. The
// caller must hold mu.
func (a *activity) sort(list []int, order pb.QueueOrder, descending bool) {
	compare := comparison(order)
	slices.SortFunc(list, func(i, j int) int {
		x, y := &a.queues[i], &a.queues[j]
		if c := compare(x, y); descending && c != 0 {
			return -c
		} else if c != 0 {
			return c
		}
		return strings.Compare(x.Name, y.Name)
	})
}

func comparison(order pb.QueueOrder) func(x, y *queueActivity) int {
	switch order {
	case pb.QueueOrder_QUEUE_ORDER_MESSAGES:
		return func(x, y *queueActivity) int { return cmp.Compare(x.Messages, y.Messages) }
	case pb.QueueOrder_QUEUE_ORDER_BYTES:
		return func(x, y *queueActivity) int { return cmp.Compare(x.Bytes, y.Bytes) }
	case pb.QueueOrder_QUEUE_ORDER_AGE:
		return func(x, y *queueActivity) int { return cmp.Compare(y.acceptMS, x.acceptMS) }
	case pb.QueueOrder_QUEUE_ORDER_PUBLISHED:
		return func(x, y *queueActivity) int { return cmp.Compare(x.published, y.published) }
	case pb.QueueOrder_QUEUE_ORDER_DELIVERED:
		return func(x, y *queueActivity) int { return cmp.Compare(x.delivers, y.delivers) }
	case pb.QueueOrder_QUEUE_ORDER_ACKNOWLEDGED:
		return func(x, y *queueActivity) int { return cmp.Compare(x.acks, y.acks) }
	case pb.QueueOrder_QUEUE_ORDER_CONSUMERS:
		return func(x, y *queueActivity) int { return cmp.Compare(x.consumers, y.consumers) }
	case pb.QueueOrder_QUEUE_ORDER_UNSPECIFIED, pb.QueueOrder_QUEUE_ORDER_NAME:
	}
	return func(x, y *queueActivity) int { return strings.Compare(x.Name, y.Name) }
}
