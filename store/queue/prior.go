package queue

import "github.com/lockstep-mq/lockstep/store/txn"

// Prior tells what Apply would say to a transaction of producer p before it looks at the transaction: the result of the one
// that was applied under the same sequence, or why it would be refused. With neither, it would be applied. It changes
// nothing, so that a server can answer a retry whose queue is gone or full by now (INV-10).
func (s *State) Prior(p txn.Producer) (prior txn.Result, ok bool, refused txn.Code) {
	_, kept, code := s.producers.lookup(p)
	if kept == nil {
		return txn.Result{}, false, code
	}
	return kept.result(), true, txn.OK
}
