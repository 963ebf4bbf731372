"""The life of a request, one step a file, in this order:

    validate -> template -> tokenize -> generation_config -> generate -> assemble

Only `generate` touches the engine, only `assemble` knows the shape of an answer.
"""
