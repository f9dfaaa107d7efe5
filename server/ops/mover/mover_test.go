// SPDX-License-Identifier: Apache-2.0

package mover

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/fleet"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/store/queue"
	"github.com/lockstep-mq/lockstep/store/txn"
)

const messageBytes = 1000

// fill creates a queue at pair a with n messages, and acknowledges every seventh of them.
func (w *world) fill(name string, n int, c txn.Config) (id uint64) {
	w.t.Helper()
	id = w.a.create(name, c)
	for i := range n {
		require.NoError(w.t, w.a.publish(id, i, messageBytes))
		if i%7 == 0 {
			seq := uint64(i + 1)
			w.a.commit(func(b *txn.Builder) { b.Ack(id, 1, txn.Range{First: seq, Last: seq}) })
		}
	}
	_, err := w.a.store.Checkpoint(w.t.Context())
	require.NoError(w.t, err)
	return id
}

// While messages are published, a queue moves with all of them. After the fence, only the last ones are compared.
func TestMoveComparesBeforeFence(t *testing.T) {
	simulate(t, func(w *world) {
		const stored = 2000
		id := w.fill("q", stored, txn.Config{})
		total, fenced := uint64(0), uint64(0)
		w.digest = func(_ *pb.DigestMessagesRequest, resp *pb.DigestMessagesResponse) {
			for i := 1; i < len(resp.GetLengths()); i += 2 {
				if total += resp.GetLengths()[i]; w.fenced {
					fenced += resp.GetLengths()[i]
				}
			}
		}
		published, ended := stored, make(chan error, 1)
		go func() {
			for w.t.Context().Err() == nil {
				if err := w.a.publish(id, published, messageBytes); err != nil {
					ended <- err
					return
				}
				published++
				w.wait(10 * latency)
			}
		}()
		p := w.ended(w.move("q"))
		require.NoError(t, p.Reason)
		require.Equal(t, PhaseDone, p.Phase)
		require.ErrorIs(t, <-ended, txn.ErrMoved)
		require.False(t, w.a.owns("q"))
		got := w.b.messages("q")
		require.Len(t, got, published-(stored+6)/7)
		require.Equal(t, uint64(published), got[len(got)-1].Sequence)
		require.GreaterOrEqual(t, total, uint64(len(got)), "all messages were compared")
		require.Less(t, fenced, uint64(20))
		require.Less(t, p.Pause, 20*latency, "the pause consists of some round trips")
	})
}

// A move with a difference between the copies is canceled, and the source serves the queue.
func TestMoveWithDifference(t *testing.T) {
	const stored, changed = 300, 200
	flip := func(b []byte) { b[len(b)-1] ^= 1 }
	at := func(resp *pb.PullMessagesResponse) int { return slices.Index(resp.GetSequences(), changed) }
	for name, c := range map[string]struct {
		prepare func(w *world)
		fenced  bool // the difference is found only after the fence
	}{
		"body at the target": {prepare: func(w *world) {
			w.messages = func(resp *pb.PullMessagesResponse) {
				if i := at(resp); i >= 0 {
					flip(resp.GetRecords()[i])
				}
			}
		}},
		"missing message": {prepare: func(w *world) {
			w.messages = func(resp *pb.PullMessagesResponse) {
				if i := at(resp); i >= 0 {
					resp.Sequences, resp.Records = slices.Delete(resp.Sequences, i, i+1), slices.Delete(resp.Records, i, i+1)
				}
			}
		}},
		"body at the source": {prepare: func(w *world) {
			w.digest = func(req *pb.DigestMessagesRequest, resp *pb.DigestMessagesResponse) {
				if req.GetFrom() <= changed && resp.GetNext() > changed {
					flip(resp.GetSha256())
				}
			}
		}},
		"invalid digest": {prepare: func(w *world) {
			w.digest = func(_ *pb.DigestMessagesRequest, resp *pb.DigestMessagesResponse) { resp.Lengths[1]++ }
		}},
		"no progress": {prepare: func(w *world) {
			w.digest = func(req *pb.DigestMessagesRequest, resp *pb.DigestMessagesResponse) { resp.Next = req.GetFrom() }
		}},
		"state": {fenced: true, prepare: func(w *world) {
			w.digests = func(resp *pb.GetMoveDigestsResponse) { flip(resp.GetDigests()[0].GetSha256()) }
		}},
		"number of messages": {fenced: true, prepare: func(w *world) {
			w.digests = func(resp *pb.GetMoveDigestsResponse) { resp.GetDigests()[0].Messages++ }
		}},
		"no digest of the state": {fenced: true, prepare: func(w *world) {
			w.digests = func(resp *pb.GetMoveDigestsResponse) { resp.Digests = nil }
		}},
	} {
		t.Run(name, func(t *testing.T) {
			simulate(t, func(w *world) {
				id := w.fill("q", stored, txn.Config{})
				before := w.a.messages("q")
				c.prepare(w)
				p := w.ended(w.move("q"))
				require.Equal(t, PhaseNotMoved, p.Phase)
				if !errors.Is(p.Reason, errDiffer) {
					require.ErrorIs(t, p.Reason, txn.ErrMalformed)
				}
				require.Equal(t, c.fenced, w.fenced)
				require.True(t, w.a.owns("q"))
				require.Equal(t, before, w.a.messages("q"))
				require.NoError(t, w.a.publish(id, stored, 0))
				w.hooks = hooks{}
				require.Equal(t, PhaseDone, w.ended(w.move("q")).Phase, "a later move succeeds")
				require.True(t, w.b.owns("q"))
			})
		})
	}
}

// A malformed response cancels the move after the import of the earlier messages.
func TestMoveWithMalformedResponse(t *testing.T) {
	simulate(t, func(w *world) {
		w.fill("q", 2*responseBytes/messageBytes, txn.Config{})
		responses, valid := 0, uint64(0)
		w.messages = func(resp *pb.PullMessagesResponse) {
			if responses++; responses > 1 {
				resp.Records = resp.GetRecords()[1:]
				return
			}
			for _, record := range resp.GetRecords() {
				valid += uint64(len(record))
			}
		}
		p := w.ended(w.move("q"))
		require.Equal(t, PhaseNotMoved, p.Phase)
		require.ErrorIs(t, p.Reason, txn.ErrMalformed)
		require.NotZero(t, valid)
		require.Equal(t, valid, p.CopiedBytes)
		require.True(t, w.a.owns("q"))
	})
}

// steps are the steps of a move to its end, in their order.
func steps() []string {
	return []string{"begin", "copy", "fence", "messages", "state", "compare", "take", "finish", "drop", "forget"}
}

// at calls f once, in step name.
func (w *world) at(name string, f func()) {
	done := false
	w.step = func(_ context.Context, step string) error {
		if step == name && !done {
			done = true
			f()
		}
		return nil
	}
}

// After a failover of either pair in any step, the move continues, and all messages are compared.
func TestMoveResumes(t *testing.T) {
	const stored = 300
	for _, step := range steps() {
		for _, name := range []string{"a", "b"} {
			t.Run(step+"/"+name, func(t *testing.T) {
				simulate(t, func(w *world) {
					w.fill("q", stored, txn.Config{DedupWindow: 3_600_000})
					before := w.a.messages("q")
					restarted := make(chan struct{})
					w.at(step, func() {
						go func() { // the step belongs to the term that ends
							defer close(restarted)
							if name == "a" {
								w.a.restart()
							} else {
								w.b.restart()
							}
						}()
						if name == "a" {
							<-restarted
						}
					})
					epoch := w.move("q")
					<-restarted
					w.gone(epoch)
					require.Equal(t, before, w.b.messages("q"))
					require.False(t, w.a.owns("q"))
				})
			})
		}
	}
}

// A move can be canceled until the take.
func TestCancelInEachStep(t *testing.T) {
	const stored = 100
	for _, step := range steps() {
		t.Run(step, func(t *testing.T) {
			simulate(t, func(w *world) {
				id := w.fill("q", stored, txn.Config{})
				var epoch uint64
				began, canceled := make(chan struct{}), make(chan error, 1)
				w.at(step, func() {
					<-began
					canceled <- w.b.m.Cancel(context.Background(), epoch)
				})
				epoch = w.move("q")
				close(began)
				p := w.ended(epoch)
				err := <-canceled
				if slices.Index(steps(), step) > slices.Index(steps(), "take") {
					require.Error(t, err)
					require.Equal(t, PhaseDone, p.Phase)
					return
				}
				require.NoError(t, err)
				require.Equal(t, PhaseNotMoved, p.Phase)
				require.ErrorIs(t, p.Reason, errCanceled)
				require.True(t, w.a.owns("q"))
				require.NoError(t, w.a.publish(id, stored, 0))
			})
		})
	}
}

// If the queues cannot be taken in time, the move is canceled, and the source serves the queues again.
func TestFenceLimit(t *testing.T) {
	const stored = 100
	for name, c := range map[string]struct {
		prepare func(w *world)
		// longer is the maximum time that the fence remains after fenceLimit.
		longer time.Duration
	}{
		"source does not respond": {longer: time.Second, prepare: func(w *world) {
			w.state = func(ctx context.Context, _ *pb.PullStateResponse) error {
				<-ctx.Done()
				return ctx.Err()
			}
		}},
		"source fails": {longer: time.Second, prepare: func(w *world) {
			w.state = func(context.Context, *pb.PullStateResponse) error { return fleet.ErrUnavailable }
		}},
		"no connection": {longer: 20 * time.Second, prepare: func(w *world) {
			w.at("messages", func() {
				w.net.SetCut("127.0.0.1", "127.0.0.2", true)
				time.AfterFunc(2*fenceLimit, func() { w.net.SetCut("127.0.0.1", "127.0.0.2", false) })
			})
		}},
	} {
		t.Run(name, func(t *testing.T) {
			simulate(t, func(w *world) {
				id := w.fill("q", stored, txn.Config{})
				before := w.a.messages("q")
				c.prepare(w)
				epoch := w.move("q")
				for w.a.owns("q") {
					w.wait(latency)
				}
				began := time.Now()
				for w.moveState(epoch) == queue.MoveImporting {
					require.ErrorIs(t, w.a.publish(id, stored, 0), txn.ErrMoved)
					w.wait(10 * latency)
				}
				require.InDelta(t, fenceLimit.Seconds(), time.Since(began).Seconds(), 0.1)
				require.Equal(t, queue.MoveCanceled, w.moveState(epoch), "the target cancels first (INV-28)")
				for !w.a.owns("q") {
					w.wait(latency)
				}
				require.LessOrEqual(t, time.Since(began), fenceLimit+c.longer)
				p := w.ended(epoch)
				require.Equal(t, PhaseNotMoved, p.Phase)
				require.ErrorIs(t, p.Reason, errSlow)
				require.Equal(t, before, w.a.messages("q"))
				require.NoError(t, w.a.publish(id, stored, 0))
			})
		})
	}
}

// Message IDs that are not in the page file yet are written before the fence, and move with the queue.
func TestMoveWritesIDsBeforeFence(t *testing.T) {
	simulate(t, func(w *world) {
		const stored = 4000
		id := w.fill("q", stored, txn.Config{DedupWindow: 3_600_000})
		for i := range stored { // after the checkpoint
			require.NoError(t, w.a.publish(id, stored+i, 0))
		}
		var written []bool
		w.prepared = func(resp *pb.PrepareFenceResponse) {
			require.False(t, w.fenced)
			written = append(written, resp.GetWritten())
		}
		require.Equal(t, PhaseDone, w.ended(w.move("q")).Phase)
		require.Equal(t, []bool{true}, written)
		messages := len(w.b.messages("q"))
		info := w.b.id("q")
		for _, i := range []int{1, stored - 1, stored, 2*stored - 1} {
			require.NoError(t, w.b.publish(info, i, 0))
		}
		require.Len(t, w.b.messages("q"), messages, "duplicates")
		require.NoError(t, w.b.publish(info, 2*stored, 0))
		require.Len(t, w.b.messages("q"), messages+1)
	})
}

// A copy that cannot be read is not taken, and the source is not fenced.
func TestMoveWithUnreadableMessage(t *testing.T) {
	const stored = 50
	for _, name := range []string{"a", "b"} {
		t.Run(name, func(t *testing.T) {
			simulate(t, func(w *world) {
				id := w.fill("q", stored, txn.Config{})
				w.a.commit(func(b *txn.Builder) {
					b.BeginPublish(id)
					b.MessageWith(time.Now().UnixMilli(), nil, nil, []byte("the body to damage"))
					b.EndPublish()
				})
				require.NoError(t, w.a.checkpoint())
				damaged := make(chan int, 1)
				if name == "a" {
					damaged <- w.a.damage("body to damage")
				} else {
					w.digest = func(*pb.DigestMessagesRequest, *pb.DigestMessagesResponse) {
						if len(damaged) == 0 && w.b.checkpoint() == nil {
							damaged <- w.b.damage("body to damage")
						}
					}
				}
				epoch := w.move("q")
				failed := func() bool {
					moves, _ := w.b.m.Moves()
					return len(moves) == 1 && moves[0].Err != nil
				}
				for !failed() {
					w.wait(latency)
				}
				require.Equal(t, 1, <-damaged)
				w.wait(time.Minute)
				require.True(t, failed())
				require.False(t, w.fenced)
				require.NoError(t, w.b.m.Cancel(w.t.Context(), epoch))
				require.Equal(t, PhaseNotMoved, w.ended(epoch).Phase)
				require.True(t, w.a.owns("q"))
			})
		})
	}
}
