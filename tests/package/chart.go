// SPDX-License-Identifier: MIT
// Renders a Helm chart as far as this one needs it, with what Helm renders with: Go's text/template and
// sprig. For machines that have no Helm; Debian: golang-go golang-github-masterminds-sprig-dev
// golang-gopkg-yaml.v3-dev.
//
//	GO111MODULE=off GOPATH=/usr/share/gocode go run tests/package/chart.go CHART [VALUES...]
package main

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"text/template"

	"github.com/Masterminds/sprig"
	"gopkg.in/yaml.v3"
)

func merge(a, b map[string]interface{}) {
	for k, v := range b {
		if m, ok := v.(map[string]interface{}); ok {
			if n, ok := a[k].(map[string]interface{}); ok {
				merge(n, m)
				continue
			}
		}
		a[k] = v
	}
}

// The values of the chart, and the others over them.
func main() {
	values := map[string]interface{}{}
	for _, f := range append([]string{os.Args[1] + "/values.yaml"}, os.Args[2:]...) {
		b, err := os.ReadFile(f)
		if err != nil {
			panic(err)
		}
		v := map[string]interface{}{}
		if err := yaml.Unmarshal(b, &v); err != nil {
			panic(err)
		}
		merge(values, v)
	}
	funcs := sprig.TxtFuncMap()
	funcs["toYaml"] = func(v interface{}) string {
		var b bytes.Buffer
		e := yaml.NewEncoder(&b)
		e.SetIndent(2)
		if err := e.Encode(v); err != nil {
			panic(err)
		}
		return strings.TrimSuffix(b.String(), "\n")
	}
	files, _ := os.ReadDir(os.Args[1] + "/templates")
	for _, f := range files {
		b, err := os.ReadFile(os.Args[1] + "/templates/" + f.Name())
		if err != nil {
			panic(err)
		}
		t := template.Must(template.New(f.Name()).Funcs(funcs).Option("missingkey=error").Parse(string(b)))
		fmt.Println("---")
		if err := t.Execute(os.Stdout, map[string]interface{}{"Values": values,
			"Release": map[string]interface{}{"Name": "x"}}); err != nil {
			panic(err)
		}
	}
}
