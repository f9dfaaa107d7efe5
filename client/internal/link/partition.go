// SPDX-License-Identifier: Apache-2.0

package link

import "strconv"

// PartitionSign separates the name of a partitioned queue from the number of a partition.
const PartitionSign = "#"

// PartitionName returns the name of the queue of a partition, such as "orders#3/8".
func PartitionName(queue string, index, count int) string {
	return queue + PartitionSign + strconv.Itoa(index) + "/" + strconv.Itoa(count)
}
