"""A small server that speaks TF Serving's protocols, and a client for both.

For experiments, tests and demonstrations on one machine; production runs TF Serving
itself, over the same folders. The modules, from the bottom: `errors` and `signatures`
are what every part knows; `json_values` and `json_replies` are the bodies of REST,
`tensor_messages` those of gRPC; `limits`, `batching` and `batching_config` decide what
runs together; `loaded` runs one version, after its `warmup`, and `versions` the newest
of a model; `service` answers requests whatever they came by, and `rest` and
`grpc_services` bring them; `server` starts and stops it all. `client` needs none of
them but `errors`.
"""

from keras_seq2seq.serving.client import Client as Client
