// Command strict reads manifests from stdin and decodes each one by Kubernetes' own types, as the API server does with
// fieldValidation=Strict: an unknown, repeated or misspelt field is an error. It prints one JSON object a manifest, with
// the decoder's error and with what the Pod Security Standard "restricted" forbids in its pods.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"io"
	"log"
	"os"

	monitoring "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
	disruption "k8s.io/api/policy/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	serializer "k8s.io/apimachinery/pkg/runtime/serializer/json"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	security "k8s.io/pod-security-admission/api"
	"k8s.io/pod-security-admission/policy"
)

type verdict struct {
	Kind      string   `json:"kind"`
	Name      string   `json:"name"`
	Error     string   `json:"error,omitempty"`
	Forbidden []string `json:"forbidden,omitempty"`
}

func main() {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{apps.AddToScheme, core.AddToScheme, disruption.AddToScheme, monitoring.AddToScheme} {
		if err := add(scheme); err != nil {
			log.Fatal(err)
		}
	}
	options := serializer.SerializerOptions{Yaml: true, Strict: true}
	decoder := serializer.NewSerializerWithOptions(serializer.DefaultMetaFactory, scheme, scheme, options)
	standard, err := policy.NewEvaluator(policy.DefaultChecks(), nil)
	if err != nil {
		log.Fatal(err)
	}
	documents := utilyaml.NewYAMLReader(bufio.NewReader(os.Stdin))
	for {
		document, err := documents.Read()
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			log.Fatal(err)
		}
		if err := json.NewEncoder(os.Stdout).Encode(judge(decoder, standard, document)); err != nil {
			log.Fatal(err)
		}
	}
}

func judge(decoder runtime.Decoder, standard policy.Evaluator, document []byte) verdict {
	object, kind, err := decoder.Decode(document, nil, nil)
	found := verdict{}
	if kind != nil {
		found.Kind = kind.Kind
	}
	if err != nil {
		found.Error = err.Error()
		return found
	}
	found.Name = object.(meta.Object).GetName()
	if template := podTemplate(object); template != nil {
		restricted := security.LevelVersion{Level: security.LevelRestricted, Version: security.LatestVersion()}
		for _, each := range standard.EvaluatePod(restricted, &template.ObjectMeta, &template.Spec) {
			if !each.Allowed {
				found.Forbidden = append(found.Forbidden, each.ForbiddenReason+": "+each.ForbiddenDetail)
			}
		}
	}
	return found
}

func podTemplate(object runtime.Object) *core.PodTemplateSpec {
	switch found := object.(type) {
	case *apps.StatefulSet:
		return &found.Spec.Template
	case *apps.Deployment:
		return &found.Spec.Template
	}
	return nil
}
