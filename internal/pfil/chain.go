package pfil

// Chain is the names of the filters at a hook, first the one that is asked first.
func (t *Table) Chain(h Hook) []string {
	c := t.hooks[hookOf(h.Port.Index, h.Dir)].Load()
	if c == nil {
		return nil
	}
	names := make([]string, len(*c))
	for i, f := range *c {
		names[i] = f.name
	}
	return names
}

// Links are the hooks that a filter is at, none of one that is not loaded.
func (t *Table) Links(name string) []Hook {
	t.mu.Lock()
	defer t.mu.Unlock()
	f := t.filters[name]
	if f == nil {
		return nil
	}
	return t.links(f)
}
