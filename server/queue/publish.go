package queue

import (
	"context"
	"fmt"
	"hash/crc32"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/server/wire"
	"github.com/lockstep-mq/lockstep/store/queue"
	"github.com/lockstep-mq/lockstep/store/txn"
)

// Publish stores a batch of messages in one queue, all or none.
func (s *Service) Publish(ctx context.Context, req *pb.PublishRequest) (*pb.PublishResponse, error) {
	resp, err := s.publish(ctx, req)
	return resp, s.status(err)
}

func (s *Service) publish(ctx context.Context, req *pb.PublishRequest) (*pb.PublishResponse, error) {
	session, err := s.node.Session()
	if err != nil {
		return nil, err
	}
	buf := s.buffer()
	defer s.release(buf)
	prior, err := s.encodePublish(buf, req)
	if err != nil {
		return nil, err
	}
	if prior != nil {
		return published(req.GetQueue(), req.GetProducer(), prior)
	}
	result, err := session.Primary.Commit(ctx, *buf)
	if err != nil {
		return nil, err
	}
	session.Consumers.Published(len(req.GetMessages()), len(*buf))
	return published(req.GetQueue(), req.GetProducer(), result)
}

// published makes the answer from the transaction's result.
func published(queue string, producer *pb.Producer, r *txn.Result) (*pb.PublishResponse, error) {
	if err := wire.Refusal(r, producer != nil); err != nil {
		return nil, fmt.Errorf("publish to %q: %w", queue, err)
	}
	if len(r.Ops) != 1 {
		return nil, errOtherTransaction(producer)
	}
	return &pb.PublishResponse{FirstSequence: r.Ops[0].FirstSequence, Lsn: r.LSN, Duplicate: r.Duplicate}, nil
}

// errOtherTransaction: a retry must repeat the request.
func errOtherTransaction(p *pb.Producer) error {
	return fmt.Errorf("%w: sequence %d of producer %q was used for another transaction before; a retry must repeat "+
		"the request as it was, "+
		"something new takes the next sequence, and two producers need two ids or epochs", wire.ErrSequenceReused,
		p.GetSequence(), p.GetId())
}

// checkSame refuses a request with the sequence of another one, as far as that is still known. encode appends the
// request's transaction.
func (s *Service) checkSame(p *txn.Producer, encode func(*txn.Builder)) error {
	var want uint32
	err := s.store.View(func(st *queue.State) error {
		want = st.Fingerprint(*p)
		return nil
	})
	if err != nil || want == 0 {
		return err
	}
	buf := s.buffer()
	defer s.release(buf)
	var b txn.Builder
	b.Begin(*buf, 0, nil)
	encode(&b)
	encoded, err := b.Finish()
	if err != nil {
		return fmt.Errorf("encode the request: %w", err)
	}
	*buf = encoded
	got, err := txn.Fingerprint(encoded, crc32.MakeTable(crc32.Castagnoli))
	if err == nil && got != want {
		err = errOtherTransaction(&pb.Producer{Id: string(p.ID), Sequence: p.Sequence})
	}
	return err
}

// encodePublish checks a request and appends its transaction to *buf. It returns the stored result instead if the
// request is a retry (INV-10): then nothing else is checked, because the queue may be full or gone by now.
func (s *Service) encodePublish(buf *[]byte, req *pb.PublishRequest) (prior *txn.Result, err error) {
	producer, err := checkProducer(req.GetProducer())
	if err != nil {
		return nil, err
	}
	sizeBytes, err := s.checkMessages(req.GetMessages())
	if err != nil {
		return nil, err
	}
	if err := s.checkTransactionBytes(sizeBytes); err != nil {
		return nil, err
	}
	if err := txn.CheckName(req.GetQueue()); err != nil {
		return nil, err
	}
	id, retry := uint64(txn.NoQueue), req.GetProducer().GetRetry()
	err = s.store.View(func(st *queue.State) error {
		if prior, err = priorResult(st, producer, retry); err != nil || prior != nil {
			return err
		}
		q := st.QueueByName(req.GetQueue())
		if q != nil {
			id = q.ID()
		}
		if retry {
			return nil // the first attempt may be in the log by now: what was applied before this one decides
		}
		if q == nil {
			return fmt.Errorf("%w: %q", txn.ErrQueueNotFound, req.GetQueue())
		}
		return checkRoom(q, len(req.GetMessages()), sizeBytes)
	})
	if err != nil {
		return nil, err
	}
	if prior != nil {
		return prior, s.checkSame(producer, func(b *txn.Builder) {
			appendPublish(b, txn.NoQueue, 0,
				req.GetMessages())
		})
	}
	if s.node.DiskLow() {
		return nil, wire.ErrDiskLow
	}
	timeMS := now()
	var b txn.Builder
	b.Begin(*buf, timeMS, producer)
	if id == txn.NoQueue {
		b.Purge(txn.NoQueue, 0) // refused when it is applied, unless the first attempt was applied before
	} else {
		appendPublish(&b, id, timeMS, req.GetMessages())
	}
	encoded, err := b.Finish()
	if err != nil {
		return nil, fmt.Errorf("publish to %q: %w", req.GetQueue(), err)
	}
	*buf = encoded
	return nil, nil //nolint:nilnil // the usual case: not a retry
}

func appendPublish(b *txn.Builder, id uint64, timeMS int64, messages []*pb.Message) {
	b.BeginPublish(id)
	for _, m := range messages {
		b.Message(timeMS, txn.Properties(m.GetProperties()), m.GetBody())
	}
	b.EndPublish()
}

// priorResult tells what a request that was applied before is answered with; retry is what the request says of itself.
// The store's lock is held.
func priorResult(st *queue.State, p *txn.Producer, retry bool) (*txn.Result, error) {
	if p == nil {
		return nil, nil //nolint:nilnil // not a retry
	}
	ask := st.Prior
	if retry {
		ask = st.PriorOfRetry
	}
	prior, ok, refused := ask(*p)
	if refused != txn.OK {
		return nil, refused
	}
	if !ok {
		return nil, nil //nolint:nilnil // not a retry
	}
	return &prior, nil
}

// checkRoom refuses what would be refused when it is applied, before it costs a place in the log. The last word is the
// store's: others may publish at the same time.
func checkRoom(q *queue.Queue, messages, sizeBytes int) error {
	c := q.Config()
	if q.SubCount() == 0 {
		return nil // nothing will be kept
	}
	if c.MaxMessages > 0 && q.Messages()+uint64(messages) > c.MaxMessages {
		return fmt.Errorf("%w: queue %q has %d messages, its max_messages is %d", txn.ErrQueueFull, q.Name(),
			q.Messages(), c.MaxMessages)
	}
	if c.MaxBytes > 0 && q.Bytes()+uint64(sizeBytes) > c.MaxBytes {
		return fmt.Errorf("%w: queue %q has %d bytes, its max_bytes is %d", txn.ErrQueueFull, q.Name(), q.Bytes(),
			c.MaxBytes)
	}
	return nil
}
