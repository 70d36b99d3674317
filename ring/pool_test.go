package ring

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestPoolIsBoundedAndCountsItsHighWater(t *testing.T) {
	p := newPool(2, 1)
	a, b := p.get(1521), p.get(gatherSmall)
	assert.Len(t, a, gatherSmall)
	assert.Len(t, b, gatherSmall)
	assert.Nil(t, p.get(60), "empty")
	c := p.get(gatherSmall + 1)
	assert.Len(t, c, gatherLarge)
	assert.Nil(t, p.get(gatherSmall+1), "empty")
	assert.Nil(t, p.get(gatherLarge+1), "longer than any buffer")

	p.put(a[:10])
	p.put(nil)
	size, free, high := p.small.census()
	assert.Equal(t, []int{2, 1, 2}, []int{size, free, high})
	assert.Same(t, &a[0], &p.get(9000)[0], "the last one back is the first one out")
	p.put(c)
	size, free, high = p.large.census()
	assert.Equal(t, []int{1, 1, 1}, []int{size, free, high})
}
