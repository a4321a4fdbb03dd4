// Command login sends a record and reads it back, as somebody who shows a certificate, or logs in by a mechanism of SASL
// with the password or token that is in the environment as SECRET.
//
// It prints the record's value, or why it was refused, to stderr, and exits with 1.
package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"flag"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/oauth"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

var (
	bootstrap   = flag.String("bootstrap-server", "", "HOST:PORT of a broker")
	mechanism   = flag.String("mechanism", "", "of SASL; none without it")
	user        = flag.String("user", "", "who logs in")
	authorities = flag.String("ca-file", "", "whom to trust; no TLS without it")
	certificate = flag.String("certificate-file", "", "certificate to show")
	key         = flag.String("key-file", "", "its key")
	topic       = flag.String("topic", "", "topic to write and read")
	value       = flag.String("value", "", "what to write")
)

func main() {
	flag.Parse()
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	read, err := writeAndRead(ctx)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println(read)
}

func writeAndRead(ctx context.Context) (string, error) {
	options := []kgo.Opt{
		kgo.SeedBrokers(strings.Split(*bootstrap, ",")...),
		kgo.AllowAutoTopicCreation(),
		kgo.ConsumeTopics(*topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.UnknownTopicRetries(20),
		kgo.RequestRetries(2),
	}
	secured, err := security()
	if err != nil {
		return "", err
	}
	client, err := kgo.NewClient(append(options, secured...)...)
	if err != nil {
		return "", err
	}
	defer client.Close()
	if err := client.Ping(ctx); err != nil { // which a login that fails ends at once, and no producing does
		return "", err
	}
	record := kgo.Record{Topic: *topic, Value: []byte(*value)}
	if err := client.ProduceSync(ctx, &record).FirstErr(); err != nil {
		return "", err
	}
	fetches := client.PollRecords(ctx, 1)
	if err := fetches.Err(); err != nil {
		return "", err
	}
	return string(fetches.Records()[0].Value), nil
}

// security returns the options of TLS and SASL that the flags ask for.
func security() ([]kgo.Opt, error) {
	var options []kgo.Opt
	if *authorities != "" {
		config, err := tlsConfig()
		if err != nil {
			return nil, err
		}
		options = append(options, kgo.DialTLSConfig(config))
	}
	if *mechanism != "" {
		options = append(options, kgo.SASL(login()))
	}
	return options, nil
}

func tlsConfig() (*tls.Config, error) {
	pem, err := os.ReadFile(*authorities)
	if err != nil {
		return nil, err
	}
	config := &tls.Config{RootCAs: x509.NewCertPool()}
	config.RootCAs.AppendCertsFromPEM(pem)
	if *certificate != "" {
		shown, err := tls.LoadX509KeyPair(*certificate, *key)
		if err != nil {
			return nil, err
		}
		config.Certificates = []tls.Certificate{shown}
	}
	return config, nil
}

func login() sasl.Mechanism {
	secret := os.Getenv("SECRET")
	switch *mechanism {
	case "PLAIN":
		return plain.Auth{User: *user, Pass: secret}.AsMechanism()
	case "SCRAM-SHA-256":
		return scram.Auth{User: *user, Pass: secret}.AsSha256Mechanism()
	case "SCRAM-SHA-512":
		return scram.Auth{User: *user, Pass: secret}.AsSha512Mechanism()
	case "OAUTHBEARER":
		return oauth.Auth{Token: secret}.AsMechanism()
	}
	panic("there is no mechanism " + *mechanism)
}
