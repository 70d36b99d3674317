package sys

// Vectors are the interrupt vectors of a device that somebody is told of. They are not
// safe for concurrent use.
type Vectors map[int]*Events

// Bind has fn called after each message of vector n, or nobody when fn is nil. What was
// bound before is not called any more once Bind has returned. tell gives the device the
// descriptor that a message makes readable, -1 for none; its error is Bind's.
func (v Vectors) Bind(n int, fn func(), tell func(fd int) error) error {
	if old := v[n]; old != nil {
		err := tell(-1)
		old.Close()
		delete(v, n)
		if err != nil {
			return err
		}
	}
	if fn == nil {
		return nil
	}
	e, err := NewEvents(fn)
	if err != nil {
		return err
	}
	if err := tell(e.FD()); err != nil {
		e.Close()
		return err
	}
	v[n] = e
	return nil
}

// Close ends all of them; nobody tells the device.
func (v Vectors) Close() {
	for n, e := range v {
		e.Close()
		delete(v, n)
	}
}
