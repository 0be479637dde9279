#ifdef __cplusplus
extern "C" {
#endif
int ggml_type_size(int type);
int ggml_alloc_answer(void);
int ggml_backend_answer(void);
#ifdef __cplusplus
}
#endif
