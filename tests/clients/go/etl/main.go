// Command etl copies a topic to another one, exactly once, as a member of a group: franz-go's GroupTransactSession.
//
// It prints a JSON object for each transaction, and one when its share of the partitions changes. It ends when its input
// is closed, as its last transaction has ended.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

type event struct {
	Name       string `json:"name"`
	Records    int    `json:"records,omitempty"`
	Partitions int    `json:"partitions,omitempty"`
	Error      string `json:"error,omitempty"`
}

func say(what event) {
	line, err := json.Marshal(what)
	if err != nil {
		panic(err)
	}
	fmt.Println(string(line))
}

func main() {
	bootstrap := flag.String("bootstrap-server", "", "HOST:PORT of a broker")
	from := flag.String("from", "", "topic to read")
	to := flag.String("to", "", "topic to write")
	group := flag.String("group", "", "consumer group")
	id := flag.String("transactional-id", "", "transactional id of this member")
	most := flag.Int("records", 1000, "most records of a transaction")
	every := flag.Int("abort-every", 0, "abort each transaction of this number, to copy its records again; 0 for none")
	flag.Parse()

	session, err := kgo.NewGroupTransactSession(
		kgo.SeedBrokers(strings.Split(*bootstrap, ",")...),
		kgo.TransactionalID(*id),
		kgo.ConsumerGroup(*group),
		kgo.ConsumeTopics(*from),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.RequireStableFetchOffsets(),
		kgo.DefaultProduceTopic(*to),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.TransactionTimeout(20*time.Second),
		kgo.SessionTimeout(6*time.Second),
		kgo.HeartbeatInterval(500*time.Millisecond),
		kgo.OnPartitionsAssigned(func(_ context.Context, _ *kgo.Client, got map[string][]int32) {
			say(event{Name: "assigned", Partitions: len(got[*from])})
		}),
		kgo.OnPartitionsRevoked(func(_ context.Context, _ *kgo.Client, lost map[string][]int32) {
			say(event{Name: "revoked", Partitions: len(lost[*from])})
		}),
	)
	if err != nil {
		panic(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		}
		cancel()
	}()
	for number := 1; ctx.Err() == nil; number++ {
		willing := *every == 0 || number%*every != 0
		if err := transact(ctx, session, *most, willing); err != nil {
			say(event{Name: "failed", Error: err.Error()})
			os.Exit(1)
		}
	}
	session.Close()
	say(event{Name: "closed"})
}

// transact copies what one poll gives, in a transaction that commits if it is willing and can, and says how it ended.
func transact(ctx context.Context, session *kgo.GroupTransactSession, most int, willing bool) error {
	fetches := session.PollRecords(ctx, most)
	if ctx.Err() != nil {
		return nil
	}
	for _, failed := range fetches.Errors() {
		say(event{Name: "fetch_failed", Error: failed.Err.Error()})
	}
	count := fetches.NumRecords()
	if count == 0 {
		return nil
	}
	if err := session.Begin(); err != nil {
		return err
	}
	promise := kgo.AbortingFirstErrPromise(session.Client())
	fetches.EachRecord(func(record *kgo.Record) {
		copied := kgo.Record{Partition: record.Partition, Key: record.Key, Value: record.Value}
		session.Produce(ctx, &copied, promise.Promise())
	})
	failed := promise.Err()
	committed, err := session.End(context.Background(), kgo.TransactionEndTry(willing && failed == nil))
	switch {
	case err != nil:
		return err
	case committed:
		say(event{Name: "committed", Records: count})
	default:
		say(event{Name: "aborted", Records: count})
	}
	return nil
}
