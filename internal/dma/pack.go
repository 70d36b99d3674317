package dma

// Need is one region that somebody will ask for, in bytes.
type Need struct{ Size, Align int }

// packer places regions in pages: each whole inside one page, in the first that has
// room behind what it holds. Nothing is placed twice, so memory stays as the kernel
// zeroed it.
type packer struct {
	page int   // bytes
	used []int // of each page
}

// place returns the page and the offset in it; the page is len(p.used) when none has
// room. It reserves nothing: take does.
func (p *packer) place(n Need) (page, off int) {
	for i, used := range p.used {
		if at := (used + n.Align - 1) &^ (n.Align - 1); at+n.Size <= p.page {
			return i, at
		}
	}
	return len(p.used), 0
}

// take reserves what place has returned.
func (p *packer) take(page, off, size int) {
	if page == len(p.used) {
		p.used = append(p.used, 0)
	}
	p.used[page] = off + size
}

// Pages is how many pages of pageBytes a Huge provider takes for needs, asked for in
// this order. A need that is larger than a page is counted as the pages that it would
// fill, though no provider of this package gives it in one piece.
func Pages(needs []Need, pageBytes int) int {
	if len(needs) == 0 {
		return 0
	}
	p, more := packer{page: pageBytes}, 0
	p.take(0, 0, hugeTable)
	for _, n := range needs {
		if n.Size > pageBytes {
			more += (n.Size + pageBytes - 1) / pageBytes
			continue
		}
		page, off := p.place(n)
		p.take(page, off, n.Size)
	}
	return len(p.used) + more
}
