// SPDX-License-Identifier: Apache-2.0

package queue

const (
	// MaxQueues is the greatest number of queues of a store.
	MaxQueues = 1_000_000
	// MaxMeta is the greatest number of the pair's own entries.
	MaxMeta = 1000
	// MaxAccess is the greatest number of entries of the access table.
	MaxAccess = 10_000
	// MaxReleased is the greatest number of messages that one transaction may release.
	MaxReleased = 65_536
	// MaxRunSpan is the greatest number of sequences (first to last, dead ones in between included) that one run of
	// messages in the page file may cover: DeadRange.AllDead could not tell about a longer one.
	MaxRunSpan = ChunkSize

	// MaxPrepared is the greatest number of transactions that wait for a decision.
	MaxPrepared = 10_000
	// MaxPreparedBytes is the greatest length of all of them together, as encoded.
	MaxPreparedBytes = 256 << 20
	// MaxTaken is the greatest number of messages that one transaction may acknowledge on the condition that they are
	// not acknowledged, as each one that is prepared does.
	MaxTaken = 262_144
	// PreparedOutcomes is the number of transactions that are remembered after they were decided.
	PreparedOutcomes = 10_000

	// ProducerWindow is the number of results that are kept for a producer: the number of transactions it may have
	// outstanding at most.
	ProducerWindow = 256
	// MaxProducers is the number of producers that are remembered. The one that was used longest ago, in the order of
	// the log, is forgotten first: no clock is involved.
	MaxProducers = 100_000

	// maxProducerOps is the number of operations' results that are kept for one producer: it bounds the memory of one
	// whose transactions have many.
	maxProducerOps = 4096
	// maxProducersOps is the same over all producers. Beyond it the producers that were used longest ago lose their
	// results, but not their sequence: their retries are answered with ErrTooOld.
	maxProducersOps = 1 << 19
)

// limits are the limits that tests lower.
type limits struct {
	queues, meta, access               int
	released, taken                    int
	prepared, preparedBytes, outcomes  int
	producers, producerOps, totalOps   int
	producerWindow, forgottenThreshold int
}

func defaultLimits() limits {
	return limits{
		queues: MaxQueues, meta: MaxMeta, access: MaxAccess, released: MaxReleased, taken: MaxTaken,
		prepared: MaxPrepared, preparedBytes: MaxPreparedBytes, outcomes: PreparedOutcomes,
		producers: MaxProducers, producerOps: maxProducerOps, totalOps: maxProducersOps,
		producerWindow: ProducerWindow, forgottenThreshold: ProducerWindow,
	}
}
