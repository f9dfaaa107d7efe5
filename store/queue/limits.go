// SPDX-License-Identifier: Apache-2.0

package queue

// Limits of a State.
const (
	MaxQueues = 1_000_000
	// MaxMeta is the maximum number of internal entries (MetaEntry).
	MaxMeta     = 1000
	MaxAccess   = 10_000
	MaxPolicies = 1000
	MaxReleased = 65_536 // messages in one transaction
	// MaxExtentSpan is the maximum number of sequences, live and dead, that one extent in the page file spans.
	MaxExtentSpan = ChunkSize

	MaxPrepared      = 10_000 // undecided transactions
	MaxPreparedBytes = 256 << 20
	// MaxTaken is the maximum number of messages that one transaction may acknowledge with OpTake. For a prepared
	// transaction, the limit includes its other acknowledgements.
	MaxTaken = 262_144
	// PreparedOutcomes is the maximum number of retained outcomes of decided transactions. The oldest is removed first.
	PreparedOutcomes = 10_000

	// ProducerWindow is the maximum number of results retained per producer. It limits the outstanding transactions of
	// a producer.
	ProducerWindow = 256
	// MaxProducers is the maximum number of retained producers. The least recently used producer, in log order, is
	// evicted first.
	MaxProducers = 100_000

	// MaxProducerDuplicates is the maximum number of duplicates retained per producer: the messages of its last
	// publishes that a queue discarded because of their message ID. The last result is retained even if it exceeds the
	// limit.
	MaxProducerDuplicates = 1 << 16

	// maxProducerOps is the maximum number of operation results retained per producer.
	maxProducerOps = 4096
	// maxProducersOps and maxProducersDuplicates are the maximum numbers of operation results and of duplicates retained
	// for all producers: about 40 MiB and 16 MiB. Above them, the results of the least recently used producers are
	// discarded. Retries by these producers then return ErrTooOld.
	maxProducersOps        = 1 << 19
	maxProducersDuplicates = 1 << 20
)

type limits struct {
	queues, meta, access, policies    int
	released, taken                   int
	prepared, preparedBytes, outcomes int
	moves                             int
	importChunks                      uint64
	producers, producerOps, totalOps  int
	producerDuplicates                int
	totalDuplicates                   int
	producerWindow, evictionThreshold int
}

func defaultLimits() limits {
	return limits{
		queues: MaxQueues, meta: MaxMeta, access: MaxAccess, policies: MaxPolicies, released: MaxReleased, taken: MaxTaken,
		prepared: MaxPrepared, preparedBytes: MaxPreparedBytes, outcomes: PreparedOutcomes,
		moves: MaxMoves, importChunks: maxImportChunks,
		producers: MaxProducers, producerOps: maxProducerOps, totalOps: maxProducersOps,
		producerDuplicates: MaxProducerDuplicates, totalDuplicates: maxProducersDuplicates,
		producerWindow: ProducerWindow, evictionThreshold: ProducerWindow,
	}
}
