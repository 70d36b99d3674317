//go:build !linux

package main

func main() {} // the guest is Linux
