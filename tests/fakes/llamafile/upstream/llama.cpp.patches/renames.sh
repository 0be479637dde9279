#!/bin/bash
mv src/llama-old-name.c src/llama.c
