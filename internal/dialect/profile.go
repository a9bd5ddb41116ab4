package dialect

// Engine is a kind of upstream: what it can be asked for beyond its API, and where it
// answers that. The zero Engine is asked for nothing.
type Engine string

// The engines that roundhouse knows (C10).
const (
	OpenAI    Engine = "openai"
	Anthropic Engine = "anthropic"
	VLLM      Engine = "vllm"
	SGLang    Engine = "sglang"
	LMDeploy  Engine = "lmdeploy"
	LlamaCpp  Engine = "llamacpp"
)

// Engines returns the engines that there are.
func Engines() []Engine { return []Engine{OpenAI, Anthropic, VLLM, SGLang, LMDeploy, LlamaCpp} }

// Profile is what is known of an upstream. The zero Profile injects nothing and strips
// nothing.
type Profile struct {
	Engine Engine
	// EndOfText is the model's end-of-text string. It is scrubbed from the texts of
	// answers, also where it is split over deltas; "" scrubs nothing.
	EndOfText string
	// Experts asks engines for mixtures of experts to tell which were used. Engines
	// that were not started for it refuse the request then.
	Experts bool
}

// field is a member to add to a request, and the members of answers that come of it;
// a dot leads into one. If the client asked for it itself, neither is done.
type field struct {
	ask   string
	value string
	back  []string
}

// fields returns what makes an engine tell token ids in answer to a request.
func (p Profile) fields(r *Request) []field {
	var fields []field
	logprobs := field{"logprobs", "true", []string{"logprobs"}}
	switch {
	case p.Engine == VLLM && r.API == Chat:
		// The first chunk has the prompt's ids, each its own.
		fields = []field{logprobs, {idsMember, "true", []string{"prompt_token_ids", "token_ids"}}}
	case p.Engine == SGLang && r.API == Chat && !r.Stream:
		// It refuses all of these but logprobs on streams. Older versions know the latter
		// two and take no notice of the others.
		fields = []field{
			logprobs,
			{idsMember, "true", []string{"prompt_token_ids", "token_ids"}},
			{"return_prompt_token_ids", "true", []string{"prompt_token_ids"}},
			{"return_meta_info", "true", []string{"meta_info"}},
		}
		if p.Experts {
			fields = append(fields, field{"return_routed_experts", "true", []string{"sglext.routed_experts"}})
		}
	case p.Engine == LMDeploy && (r.API == Chat || r.API == Messages):
		fields = []field{
			{idsMember, "true", []string{"output_ids"}},
			{"return_logprob", "true", []string{"output_token_logprobs"}},
		}
		if p.EndOfText != "" {
			// Without it the ids lack the one that ends the text.
			fields = append(fields, field{ask: "include_stop_str_in_output", value: "true"})
		}
		if p.Experts {
			fields = append(fields, field{"return_routed_experts", "true", []string{"routed_experts"}})
		}
	case p.Engine == LlamaCpp && r.API == Chat:
		// Its ids stand in the logprobs. Asked for by this name it gives them on streams with
		// tools, too, where it refuses the API's own.
		if !r.asked["logprobs"] {
			fields = []field{{"n_probs", "1", []string{"logprobs"}}}
		}
	}
	return fields
}

// counts reports whether so many ids are as many tokens as the engine counted.
func (e Engine) counts(ids, counted int64) bool {
	switch e {
	case VLLM, SGLang, LlamaCpp:
		// llama.cpp counts and does not tell the tokens of a stop string of the client's, and
		// on streams those of which there is no text or which make a tool call, the one that
		// ends the answer among them. None of this can be told from ids that got lost.
		return ids == counted
	}
	return true
}

// refusesUnknown reports whether the engine refuses members that it does not know.
func (e Engine) refusesUnknown() bool { return e == OpenAI || e == Anthropic }

// runsLocally reports whether the engine has none of Anthropic's own tools.
func (e Engine) runsLocally() bool {
	switch e {
	case VLLM, SGLang, LMDeploy, LlamaCpp:
		return true
	}
	return false
}
