package trace

// CheckFormat is for the tests of scenes, which import this package.
var CheckFormat = checkFormat
