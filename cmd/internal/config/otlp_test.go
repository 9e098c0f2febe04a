package config

import (
	"math"
	"testing"
)

func TestOTLP(t *testing.T) {
	for _, tc := range []struct {
		o  OTLP
		ok bool
	}{
		{OTLP{}, true},
		{OTLP{Endpoint: "http://127.0.0.1:4318", Sample: 1}, true},
		{OTLP{Endpoint: "https://collector/base", Sample: 0.5, CA: "/ca.pem"}, true},
		{OTLP{Endpoint: "http://[::1]:4318", CA: "/ca.pem"}, false},
		{OTLP{Endpoint: "https://collector", CA: "ca.pem"}, false},
		{OTLP{Endpoint: "127.0.0.1:4318"}, false},
		{OTLP{Endpoint: "grpc://127.0.0.1:4317"}, false},
		{OTLP{Endpoint: "http://:4318"}, false},
		{OTLP{Endpoint: "http://a:b@collector"}, false},
		{OTLP{Endpoint: "http://collector?x=1"}, false},
		{OTLP{Sample: -0.1}, false},
		{OTLP{Sample: 1.1}, false},
		{OTLP{Sample: math.NaN()}, false},
	} {
		if err := tc.o.validate(); (err == nil) != tc.ok {
			t.Errorf("%+v: %v", tc.o, err)
		}
	}
}
