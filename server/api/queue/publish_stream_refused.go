// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"fmt"

	"github.com/lockstep-mq/lockstep/replication"
	"github.com/lockstep-mq/lockstep/server/api/apierror"
)

// maxRefusedQueues limits the number of queues in the refusedQueues of one stream. At the limit, the stream ends, and
// the client continues on another stream.
const maxRefusedQueues = 1000

// refusedQueues contains the queues for which a stream has refused a request, because another pair owns the queue or
// the owner is unknown. All later requests for these queues are refused with the same error, even if the queue is
// then created at this pair. The client ends this with PublishStreamRequest.resumes, after the response to its last
// request for the queue.
type refusedQueues struct {
	errs map[string]error // nil if empty
}

// of returns the error for requests to a queue, or nil.
func (r *refusedQueues) of(queue string) error {
	if r.errs == nil {
		return nil
	}
	return r.errs[queue]
}

// add records err as the error of a queue if err concerns the owner of the queue. It returns an error if the stream
// must end, because it has too many refused queues.
func (r *refusedQueues) add(queue string, err error) error {
	if err == nil || !apierror.ConcernsOwner(err) {
		return nil
	}
	if r.errs == nil {
		r.errs = make(map[string]error)
	}
	if _, known := r.errs[queue]; !known && len(r.errs) >= maxRefusedQueues {
		return fmt.Errorf("%w: stream has requests for more than %d queues of other pairs", replication.ErrBlocked,
			maxRefusedQueues)
	}
	r.errs[queue] = err
	return nil
}

// resume permits requests to a queue again.
func (r *refusedQueues) resume(queue string) { delete(r.errs, queue) }
